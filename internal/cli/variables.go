package cli

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/weir-ratelimit/weir/internal/words"
)

// variablePrefix is the prefix of every variable that sets a flag.
const variablePrefix = "WEIR_"

// maxTypo is the maximum number of characters in which a misspelled variable differs from the known one.
const maxTypo = 2

// ofService matches the variables that Kubernetes sets in every container of a namespace with a Service named weir or
// weir-*: WEIR_SERVICE_HOST, WEIR_SERVICE_PORT_GRPC, WEIR_PORT, WEIR_PORT_8081_TCP_ADDR.
var ofService = regexp.MustCompile(`_SERVICE_(HOST|PORT)|_PORT(_|$)`)

// misspelledVariables returns a sorted error text for each non-empty variable that resembles a known one.
func misspelledVariables(environ []string, known map[string]bool) (wrong []string) {
	names := slices.Sorted(maps.Keys(known))
	for _, variable := range environ {
		name, value, _ := strings.Cut(variable, "=")
		if value == "" || !strings.HasPrefix(name, variablePrefix) || known[name] || ofService.MatchString(name) {
			continue
		}
		if near := words.Nearest(name, names); near != "" && words.Distance(name, near) <= maxTypo {
			wrong = append(wrong, fmt.Sprintf("%s is not a variable of weir; did you mean %s?", name, near))
		}
	}
	slices.Sort(wrong)
	return wrong
}

// knownVariables returns the variables of all flags of all commands.
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

// checkVariables returns an error if a variable is misspelled, because for example WEIR_STOER would leave the counters
// in memory. It checks only for commands that have variables.
func checkVariables(command *kong.Context) error {
	if !slices.ContainsFunc(command.Flags(), func(f *kong.Flag) bool { return len(f.Envs) > 0 }) {
		return nil
	}
	if wrong := misspelledVariables(os.Environ(), knownVariables(command.Model.Node)); len(wrong) > 0 {
		return usage(fmt.Errorf("%s Unset it, or correct it", wrong[0]))
	}
	return nil
}
