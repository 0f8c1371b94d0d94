package cli

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

type getCmd struct {
	Descriptor string `arg:"" name:"key=value,..." help:"The descriptor's entries, in Envoy's order; \\, is a comma in a value."`
	Domain     string `required:"" placeholder:"NAME" help:"Domain of Envoy's rate limit filter."`

	remoteFlags
}

func (*getCmd) Help() string {
	return `Shows which rule a descriptor matches, and its counters in the store. It charges nothing. In addition, a
process may deny from cached denials and admit from leases.

Exit codes: 0 found, 1 no rule matches or no response, 2 the command line is wrong.

Examples:

    weir get --domain shop client=ann
    weir get --domain shop api_key=abc,path=/checkout --format json
    weir get --server unix:/run/weir/http.sock --domain shop client=ann`
}

func (c *getCmd) Run(ctx context.Context, io streams) error {
	if _, err := descriptors.ParseEntries(c.Descriptor); err != nil {
		return usage(err)
	}
	query := url.Values{"domain": {c.Domain}, "descriptor": {c.Descriptor}}
	return ask(&c.remoteFlags, io, func(to *adminapi.Client, state *adminapi.KeyState) error {
		return to.Get(ctx, "/keys/get", query, state)
	}, printState)
}

func printState(io streams, s *adminapi.KeyState) {
	mode := strings.TrimPrefix(", "+s.Mode+" mode", ", enforce mode")
	fmt.Fprintf(io.out, "domain %s, rule %s (%s)%s\n", s.Domain, s.Rule, s.Source, mode)
	switch {
	case s.Unlimited:
		fmt.Fprintln(io.out, "unlimited")
	case len(s.Limits) == 0:
		fmt.Fprintln(io.out, "the rule has no limit")
	}
	for i := range s.Limits {
		printLimit(io, &s.Limits[i])
	}
}

// printLimit prints a limit, its counter, and when the next request passes.
func printLimit(io streams, l *adminapi.KeyLimit) {
	name := strings.TrimPrefix(l.Limit+": "+l.Algorithm, ": ")
	if l.Algorithm == limiter.Concurrency.String() { // its window is the lease
		fmt.Fprintf(io.out, "%s, at most %d at once, each for at most %s\n", name, l.RequestsPerUnit, l.Window)
	} else {
		fmt.Fprintf(io.out, "%s, %d per %s, at most %d at once\n", name, l.RequestsPerUnit, l.Window, l.Capacity)
	}
	line := aligned(io.out, "  ")
	line("counter", "%s", l.Key)
	if l.Store != "" {
		line("store", "%s", l.Store)
	}
	if l.Counts != "" {
		line(strings.ReplaceAll(l.Counts, "_", " "), "%d of %d", l.Counted, l.Capacity)
	}
	if l.Estimate > 0 {
		line("reserves", "%d to %d at the start of a request", l.Estimate, l.AtMost)
	}
	line("remaining", "%d", l.Remaining)
	switch {
	case l.RetryAfter == nil:
		line("next", "never passes")
	case *l.RetryAfter > 0:
		line("next", "passes in %s", shortly(*l.RetryAfter))
	case l.Remaining < l.Estimate:
		line("next", "passes when %d remain", l.Estimate)
	default:
		line("next", "passes now")
	}
	if l.ResetAfter > 0 && (l.Counts != "count" || l.Counted > 0) { // an empty window also has an end
		line("reset", "fully available in %s, at %s", shortly(l.ResetAfter), l.ResetAt.Format(time.RFC3339))
	} else {
		line("reset", "fully available")
	}
}

// shortly rounds a time to the digits that a person reads.
func shortly(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case d >= time.Minute:
		d = d.Round(time.Second)
	case d >= time.Second:
		d = d.Round(100 * time.Millisecond)
	default:
		d = d.Round(time.Microsecond)
	}
	return d.String()
}
