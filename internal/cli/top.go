package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/weir-ratelimit/weir/internal/adminapi"
)

type topCmd struct {
	Server serverFlags `embed:"" group:"server"`

	Domain string `placeholder:"NAME" help:"Only keys of this domain."`
	Rule   string `placeholder:"PATH" help:"Only keys of this rule: its path, as GET /rules shows it, such as api_key > path=/checkout*."`
	By     string `default:"hits" enum:"hits,denied" help:"Order: hits (busiest first) or denied (most denied first)."`
	N      int    `name:"number" short:"n" default:"20" help:"How many keys to show, at most 1000."`
	Quotas bool   `help:"Show the buckets of Envoys (serve --quota) in place of keys, those that miss most first."`

	Output outputFlags   `embed:""`
	Watch  bool          `help:"Repeat until Ctrl-C."`
	Every  time.Duration `default:"2s" help:"Interval of --watch."`
}

func (*topCmd) Help() string {
	return `Shows the busiest keys of one running process in the last one to two minutes. HITS is the sum of the
requests' costs. DENIED is the part that exceeded the limit, also in shadow and quota mode. SHARE is the key's share
of all hits of its rule, or of its denied hits with --by denied. A count that is not exact is a range; see --top-keys
of serve.

With --quotas it shows what is assigned to Envoys: what each bucket of all Envoys together wanted, got and let
pass in requests a second, by their last reports. The buckets that miss most come first.

Exit codes: 0 shown, even if there are none; 1 no answer; 2 the command line is wrong.

Examples:

    weir top
    weir top --by denied --domain shop -n 5
    weir top --quotas --watch
    weir top --server unix:/run/weir/http.sock --rule api_key --watch`
}

func (c *topCmd) Run(ctx context.Context, io streams) error {
	if err := c.validate(); err != nil {
		return usage(err)
	}
	client, err := c.Server.client()
	if err != nil {
		return err
	}
	defer client.Close()
	if !c.Watch {
		return c.show(ctx, io.out, client)
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	return c.watch(ctx, io, client)
}

func (c *topCmd) validate() error {
	switch {
	case c.N < 1 || c.N > 1000:
		return fmt.Errorf("--number: must be between 1 and 1000, got %d", c.N)
	case c.Every < 100*time.Millisecond || c.Every > time.Hour:
		return fmt.Errorf("--every: must be between 100ms and 1h, got %s", c.Every)
	}
	return nil
}

// watch shows the keys until ctx is done. It starts with an answer, and goes on when one is missing later.
func (c *topCmd) watch(ctx context.Context, io streams, client *adminapi.Client) error {
	tick := time.NewTicker(c.Every)
	defer tick.Stop()
	for shown := false; ; shown = true {
		if !c.Output.json() {
			fmt.Fprintf(io.out, "%s  %s\n", time.Now().Format(time.TimeOnly), client)
		}
		err := c.show(ctx, io.out, client)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !shown:
			return err
		case err != nil:
			fmt.Fprintf(io.err, "weir: %s\n", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// show asks once.
func (c *topCmd) show(ctx context.Context, w io.Writer, client *adminapi.Client) error {
	query := url.Values{"n": {strconv.Itoa(c.N)}}
	if c.Domain != "" {
		query.Set("domain", c.Domain)
	}
	if c.Rule != "" {
		query.Set("rule", c.Rule)
	}
	if c.Quotas {
		return showOnce(ctx, c, w, client, "/quotas", query, printQuotas)
	}
	query.Set("by", c.By)
	err := showOnce(ctx, c, w, client, "/top", query, printTop)
	if refused := (*adminapi.StatusError)(nil); errors.As(err, &refused) && refused.Status == http.StatusNotFound {
		return fmt.Errorf("%w; a process older than this command has no top keys", err)
	}
	return err
}

// showOnce gets an answer and prints it, as JSON or by printTable.
func showOnce[T any](ctx context.Context, c *topCmd, w io.Writer, client *adminapi.Client, path string,
	query url.Values, printTable func(io.Writer, *T) error,
) error {
	var found T
	switch err := client.Get(ctx, path, query, &found); {
	case err != nil:
		return err
	case c.Output.json() && c.Watch:
		return jsonLines(w).Encode(found)
	case c.Output.json():
		return printJSON(streams{out: w}, found)
	}
	return printTable(w, &found)
}

func printQuotas(w io.Writer, found *adminapi.QuotaList) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "WANTED\tASSIGNED\tPASSED\tSTATE\tENVOYS\tDOMAIN\tRULE\tBUCKET\n")
	for i := range found.Buckets {
		b := &found.Buckets[i]
		fmt.Fprintf(t, "%.4g/s\t%.4g/s\t%.4g/s\t%s\t%d\t%s\t%s\t%s\n", b.Wanted, b.Rate, b.Passed, printable(b.State),
			b.Envoys, printable(b.Domain), printable(cmp.Or(b.Rule, "-")), printable(b.Descriptor))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "%d of %s, %s of Envoys\n", len(found.Buckets), count(found.Found, "bucket"),
		count(found.Streams, "stream"))
	return nil
}

func printTop(w io.Writer, found *adminapi.TopKeys) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "HITS\tDENIED\tSHARE\tDOMAIN\tRULE\tKEY\n")
	for i := range found.Keys {
		k := &found.Keys[i]
		fmt.Fprintf(t, "%s\t%s\t%.1f%%\t%s\t%s\t%s\n",
			between(k.Hits, k.HitsError), between(k.Denied, k.DeniedError), 100*k.Share, printable(k.Domain),
			printable(k.Rule), printable(k.Descriptor))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w, "%s since %s, %d counted for each rule\n", count(len(found.Keys), "key"),
		found.Since.Local().Format(time.TimeOnly), found.KeptPerRule)
	if found.Missed > 0 {
		fmt.Fprintf(w, "%d hits were of rules beyond what is counted\n", found.Missed)
	}
	return nil
}

// between is a count that may be too large by the error.
func between(n, by uint64) string {
	if by == 0 {
		return strconv.FormatUint(n, 10)
	}
	return fmt.Sprintf("%d-%d", n-by, n)
}

// printable is text that clients or operators sent, without what a terminal would obey.
func printable(text string) string {
	if strings.ContainsFunc(text, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return strconv.Quote(text)
	}
	return text
}
