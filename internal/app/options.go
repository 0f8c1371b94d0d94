package app

import (
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/weir-ratelimit/weir/internal/admin"
	"github.com/weir-ratelimit/weir/internal/admin/topkeys"
	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/conns"
	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/flags"
	"github.com/weir-ratelimit/weir/internal/grpcserver"
	"github.com/weir-ratelimit/weir/internal/logging"
	"github.com/weir-ratelimit/weir/internal/metrics"
	"github.com/weir-ratelimit/weir/internal/metrics/telemetry"
	"github.com/weir-ratelimit/weir/internal/rlqs"
	"github.com/weir-ratelimit/weir/internal/rules"
	"github.com/weir-ratelimit/weir/internal/store"
)

// Options are the flags of `weir serve`, with their environment variables, defaults and help, in the order of the help
// text. The tags are of github.com/alecthomas/kong. The zero value of a field is not its default.
type Options struct {
	RulesOptions  `embed:"" group:"rules"`
	StoreOptions  `embed:"" group:"store"`
	GRPCOptions   `embed:""`
	QuotaOptions  `embed:"" group:"quota"`
	DecideOptions `embed:""`
	RuleModes     `embed:"" group:"decide"`
	RegionOptions `embed:"" group:"decide"`
	Metrics       metrics.Options `embed:"" group:"metrics"`
	HTTPOptions   `embed:""`
	Statsd        metrics.StatsdOptions `embed:"" prefix:"statsd-" envprefix:"WEIR_STATSD_" group:"metrics"`
	OTel          telemetry.Options     `embed:"" prefix:"otel-" envprefix:"WEIR_OTEL_" group:"otel"`
	StopOptions   `embed:"" group:"stop"`
	Top           topkeys.Options `embed:"" group:"metrics"`
	Logging       logging.Config  `embed:"" group:"log"`

	// Clients are bounds that only tests set.
	Clients conns.Bounds `kong:"-"`
	// Embedded is true if the App runs inside another process, which calls App.Decider. The App has no gRPC server then.
	Embedded bool `kong:"-"`
	// HoldGC, if not nil, delays garbage collections while rules are loaded.
	HoldGC func() (release func()) `kong:"-"`
	// Build is the version of this binary.
	Build Build `kong:"-"`
	// Log receives one line for the start, each load of rules, each failed load and the stop. Its handler must not block,
	// because requests log, too.
	Log *slog.Logger `kong:"-"`
	// LogQueue, if not nil, counts the lines of Log that were dropped.
	LogQueue *logging.Queue `kong:"-"`
}

type (
	// RulesOptions are the flags of the rules.
	RulesOptions = rules.Config
	// StoreOptions are the flags of the counters.
	StoreOptions = store.Options
	// DecideOptions are the flags of decisions.
	DecideOptions = decide.Config
	// GRPCOptions are the flags of the gRPC server.
	GRPCOptions = grpcserver.Config
	// HTTPOptions are the flags of the HTTP servers.
	HTTPOptions = admin.Config
	// QuotaOptions are the flags of quotas.
	QuotaOptions = rlqs.Config
)

// Build is the version of a binary, and how it was built.
type Build = adminapi.Build

// RuleModes select behaviour of envoyproxy/ratelimit.
type RuleModes struct {
	AllowPeekAtLimit bool `env:"WEIR_ALLOW_PEEK_AT_LIMIT" help:"Admit a request of cost 0 unless the count is above the limit. Without this flag, a request of cost 0 is admitted only if one more hit would fit."`
	ShadowMode       bool `env:"WEIR_SHADOW_MODE" help:"Put all limits in shadow mode: they count, but never deny."`
	QuotaMode        bool `env:"WEIR_QUOTA_MODE" help:"Put all limits in quota mode: deny a request only if all its descriptors exceed their limits."`
}

// RegionOptions divide limits with `scope: regions`.
type RegionOptions struct {
	Region  string `env:"WEIR_REGION" placeholder:"NAME" help:"Region of this process, for limits with scope: regions; a name in --regions."`
	Regions string `env:"WEIR_REGIONS" placeholder:"NAME=PERCENT,..." help:"Percentage of each region for limits with scope: regions, such as eu=60,us=40; together at most 100. The same in all regions."`
}

// StopOptions are the delays of a stop.
type StopOptions struct {
	DrainDelay  time.Duration `env:"WEIR_DRAIN_DELAY" default:"2s" help:"How long to serve after SIGTERM, with failing /readyz and health checks, so that clients move away."`
	StopTimeout time.Duration `env:"WEIR_STOP_TIMEOUT" default:"5s" help:"How long requests in flight may take after --drain-delay."`
}

// process returns the settings of the process that rule files use.
func (o *Options) process() (descriptors.Process, error) {
	onFailure, err := descriptors.ParseOnStoreFailure(o.OnStoreFailure)
	name := ""
	if o.PerSecondStore != "" {
		name = store.PerSecond
	}
	stores := slices.AppendSeq([]string{}, maps.Keys(o.NamedStores))
	slices.Sort(stores)
	regions, regionsErr := descriptors.ParseRegions(o.Regions)
	return descriptors.Process{
		OnStoreFailure: onFailure, Replicas: o.FallbackReplicas, ShadowMode: o.ShadowMode, QuotaMode: o.QuotaMode,
		PeekAtLimit: o.AllowPeekAtLimit, Lenient: o.LenientRules, PerSecondStore: name,
		Stores: stores, Region: o.Region, Regions: regions,
	}, errors.Join(err, regionsErr)
}

// Check checks every field. Its error has one line for each invalid field, which begins with its flag. The method is
// not named Validate, because kong would call that before the command runs.
func (o *Options) Check() error {
	var e flags.Errors
	o.RulesOptions.Check(&e, &o.StoreOptions)
	o.StoreOptions.Check(&e)
	_, err := descriptors.ParseOnStoreFailure(o.OnStoreFailure)
	e.Check(err == nil, "--on-store-failure", "must be local, allow, deny or error, got %q", o.OnStoreFailure)
	regions, err := descriptors.ParseRegions(o.Regions)
	e.Check(err == nil, "--regions", "%w", err)
	e.Check(err != nil || regions[o.Region] != 0 || o.Region+o.Regions == "", "--region",
		"must be a name in --regions, got %q; set both, or neither", o.Region)
	o.GRPCOptions.Check(&e)
	o.DecideOptions.Check(&e)
	o.Metrics.Check(&e)
	o.HTTPOptions.Check(&e)
	o.Statsd.Check(&e)
	o.OTel.Check(&e)
	flags.Between(&e, "--drain-delay", o.DrainDelay, 0, 10*time.Minute)
	flags.Between(&e, "--stop-timeout", o.StopTimeout, 0, 10*time.Minute)
	o.Top.Check(&e)
	return e.Join()
}
