package rules

import (
	"slices"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/internal/flags"
	"github.com/weir-ratelimit/weir/internal/rules/xds"
	"github.com/weir-ratelimit/weir/internal/store"
)

// Config has the flags for the sources of rules.
type Config struct {
	Rules           []string `env:"WEIR_RULES" required:"" placeholder:"PATH" help:"Rule file, directory of *.yaml and *.yml files, store for rules from weir publish, or xds for rules from a control plane. Repeatable."`
	AllowEmptyRules bool     `env:"WEIR_ALLOW_EMPTY_RULES" help:"Start even if the rules cannot be loaded; until rules are loaded, requests get Unavailable."`
	LenientRules    bool     `env:"WEIR_LENIENT_RULES" help:"Accept rules that envoyproxy/ratelimit accepts (a descriptor twice, unknown replaces, fields at the wrong level), with a warning."`
	RulesEveryFile  bool     `env:"WEIR_RULES_EVERY_FILE" help:"Read files of any name in a rules directory, as envoyproxy/ratelimit does; a missing or empty directory has no rules."`
	MaxRulesSize    int64    `env:"WEIR_MAX_RULES_SIZE" default:"16777216" help:"Maximum number of bytes of all rule files, and of an xDS response. Loading rules takes up to 60 times as much memory."`
	RulesPrefix     string   `env:"WEIR_RULES_PREFIX" placeholder:"NAME" help:"In a rules directory, read only files below NAME/ and files named NAME.*, like RUNTIME_APPDIRECTORY of envoyproxy/ratelimit."`

	XDS xds.Options `embed:"" prefix:"xds-" envprefix:"WEIR_XDS_" group:"xds"`

	// Poll is the interval at which the sources are read even without a hint of a change. Settle is how long a changed
	// source must stay the same before it is loaded.
	Poll, Settle time.Duration `kong:"-"`
}

// Values of --rules that are not paths.
const (
	fromRedis = "store"
	fromXDS   = "xds"
)

// isNoPath reports whether a value of --rules is not a path.
func isNoPath(rules string) bool { return rules == fromRedis || rules == fromXDS }

// Check validates the flags. s has the flags of the store. Paths must exist unless the process may start without rules.
func (c *Config) Check(e *flags.Errors, s *store.Options) {
	e.Check(len(c.Rules) > 0, "--rules", "name at least one file or directory")
	e.Check(!slices.Contains(c.Rules, fromRedis) || s.Store != store.Memory, "--rules",
		"%s means the rules in Redis and needs --store redis://...; write ./%s for a directory with this name",
		fromRedis, fromRedis)
	e.Check(!slices.Contains(c.Rules, fromRedis) || !store.Proxied(s.Store), "--rules",
		"%s means the rules in Redis, whose changes Weir cannot receive through a proxy (proxy=true); use rule files "+
			"or xDS", fromRedis)
	flags.Between(e, "--max-rules-size", c.MaxRulesSize, 1<<10, 1<<30)
	e.Check(!strings.ContainsAny(c.RulesPrefix, "/\\"), "--rules-prefix", "must be a name without slashes, got %q",
		c.RulesPrefix)
	if !c.AllowEmptyRules && !c.RulesEveryFile {
		err := CheckPaths(slices.DeleteFunc(slices.Clone(c.Rules), isNoPath))
		e.Check(err == nil, "--rules", "%w", err)
	}
	c.XDS.Check(e, slices.Contains(c.Rules, fromXDS))
}
