package cli

import (
	"bytes"
	"context"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/sleep"
	"github.com/weir-ratelimit/weir/internal/words"
)

type topCmd struct {
	Domain string `placeholder:"NAME" help:"Only keys of this domain."`
	Rule   string `placeholder:"PATH" help:"Only keys of the rule with this path, such as api_key > path=/checkout*."`
	By     string `default:"hits" enum:"hits,denied" help:"Order: hits (busiest first) or denied (most denied first)."`
	N      int    `name:"number" short:"n" default:"20" help:"Number of keys, at most 1000."`
	Watch  bool   `short:"w" help:"Refresh every two seconds."`

	remoteFlags
}

func (*topCmd) Help() string {
	return `Shows the busiest keys of the last one to two minutes. HITS is the sum of the requests' costs. DENIED is
the part above the limit, also in shadow and quota mode. SHARE is the key's share of its rule's hits, or of its denied
hits with --by denied. An inexact count is a range; see --top-keys of serve.

Exit codes: 0 shown, even an empty list; 1 no response; 2 the command line is wrong.

Examples:

    weir top
    weir top --by denied --domain shop -n 5
    weir top --watch --server unix:/run/weir/http.sock --rule api_key`
}

func (c *topCmd) Run(ctx context.Context, io streams) error {
	if c.N < 1 || c.N > 1000 {
		return usage(fmt.Errorf("--number: must be between 1 and 1000, got %d", c.N))
	}
	for c.Watch {
		var screen bytes.Buffer
		if err := c.show(ctx, streams{out: &screen, err: io.err}); err != nil {
			return err
		}
		if isTerminal(os.Stdout) {
			_, _ = os.Stdout.WriteString("\x1b[H\x1b[2J") // clear the screen
		}
		if _, err := screen.WriteTo(io.out); err != nil {
			return err
		}
		if err := sleep.For(ctx, topEvery); err != nil {
			return nil //nolint:nilerr // the user ended it
		}
	}
	return c.show(ctx, io)
}

// topEvery is the interval of --watch.
const topEvery = 2 * time.Second

func (c *topCmd) show(ctx context.Context, io streams) error {
	query := url.Values{"n": {strconv.Itoa(c.N)}, "domain": {c.Domain}, "rule": {c.Rule}, "by": {c.By}}
	return ask(&c.remoteFlags, io, func(to *adminapi.Client, found *adminapi.TopKeys) error {
		return to.Get(ctx, "/top", query, found)
	}, printTop)
}

func printTop(io streams, found *adminapi.TopKeys) {
	t := tabwriter.NewWriter(io.out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "HITS\tDENIED\tSHARE\tDOMAIN\tRULE\tKEY\n")
	for i := range found.Keys {
		k := &found.Keys[i]
		fmt.Fprintf(t, "%s\t%s\t%.1f%%\t%s\t%s\t%s\n",
			between(k.Hits, k.HitsError), between(k.Denied, k.DeniedError), 100*k.Share, words.Line(k.Domain),
			words.Line(k.Rule), words.Line(k.Descriptor))
	}
	_ = t.Flush() // io.out keeps its first error
	fmt.Fprintf(io.out, "%s since %s; Weir counts %d keys for each rule\n", count(len(found.Keys), "key"),
		found.Since.Local().Format(time.TimeOnly), found.KeptPerRule)
	if found.Missed > 0 {
		fmt.Fprintf(io.out, "%d hits were of rules whose keys Weir does not count\n", found.Missed)
	}
}

// between formats a count that may be too large by the error.
func between(n, by uint64) string {
	if by == 0 {
		return strconv.FormatUint(n, 10)
	}
	return fmt.Sprintf("%d-%d", n-by, n)
}
