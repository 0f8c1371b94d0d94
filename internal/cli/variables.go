package cli

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/weir-ratelimit/weir/internal/words"
)

// variablePrefix begins every variable that sets a flag.
const variablePrefix = "WEIR_"

// maxTypo is in how many characters a variable may differ from a known one to be taken for that one, misspelled.
const maxTypo = 2

// What Kubernetes sets in every container of a namespace in which there is a Service named weir, or weir-and-more:
// WEIR_SERVICE_HOST, WEIR_SERVICE_PORT, WEIR_SERVICE_PORT_GRPC, WEIR_PORT=tcp://..., WEIR_PORT_8081_TCP_ADDR and the
// like. Docker's links set some of them, too.
var (
	ofService = regexp.MustCompile(`^WEIR_([A-Z0-9_]+_)?(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$`)
	ofPort    = regexp.MustCompile(`^WEIR_([A-Z0-9_]+_)?PORT=(tcp|udp|sctp)://`)
)

// unknownVariable looks like a variable of Weir, but sets no flag.
type unknownVariable struct {
	name string
	near string // a known one that it is like; empty if there is none
	typo bool   // it is very like it
}

func (v *unknownVariable) String() string {
	if v.near == "" {
		return v.name + " is no variable of weir"
	}
	return fmt.Sprintf("%s is no variable of weir; did you mean %s?", v.name, v.near)
}

// unknownVariables are those of the environment that are not empty, sorted.
func unknownVariables(environ []string, known map[string]bool) (unknown []unknownVariable) {
	names := slices.Sorted(maps.Keys(known))
	for _, variable := range environ {
		name, value, _ := strings.Cut(variable, "=")
		if value == "" || !strings.HasPrefix(name, variablePrefix) || known[name] || ofService.MatchString(name) ||
			ofPort.MatchString(variable) {
			continue
		}
		near := words.Nearest(name, names)
		unknown = append(unknown, unknownVariable{
			name: name, near: near,
			typo: near != "" && words.Distance(name, near) <= maxTypo,
		})
	}
	slices.SortFunc(unknown, func(a, b unknownVariable) int { return strings.Compare(a.name, b.name) })
	return unknown
}

// knownVariables are those of all flags of all commands.
func knownVariables(node *kong.Node) map[string]bool {
	known := map[string]bool{}
	for _, f := range node.Flags {
		for _, name := range f.Envs {
			known[name] = true
		}
	}
	for _, child := range node.Children {
		maps.Copy(known, knownVariables(child))
	}
	return known
}

// checkVariables refuses an environment with a variable that is a misspelled one, as a flag that is misspelled is
// refused: WEIR_STOER would leave the counters in memory. It is for commands that read variables at all.
func checkVariables(command *kong.Context) error {
	if !slices.ContainsFunc(command.Flags(), func(f *kong.Flag) bool { return len(f.Envs) > 0 }) {
		return nil
	}
	for _, v := range unknownVariables(os.Environ(), knownVariables(command.Model.Node)) {
		if v.typo {
			return usage(fmt.Errorf("%s Unset it, or correct it", &v))
		}
	}
	return nil
}

// warnVariables logs variables that look like Weir's but do nothing.
func warnVariables(ctx context.Context, log *slog.Logger, command *kong.Context) {
	for _, v := range unknownVariables(os.Environ(), knownVariables(command.Model.Node)) {
		log.LogAttrs(ctx, slog.LevelWarn, "a variable of the environment does nothing", slog.String("reason", v.String()))
	}
}
