package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/offline"
	"github.com/weir-ratelimit/weir/internal/rules"
	"github.com/weir-ratelimit/weir/internal/words"
)

// errNoAnswer is an error whose message has been printed, for commands whose exit code 1 means a negative result.
var errNoAnswer = errors.New("reported: no answer")

type diffCmd struct {
	Old string `arg:"" name:"old" help:"Old rules: a file or a directory; - for stdin."`
	New string `arg:"" name:"new" help:"New rules: a file or a directory; - for stdin."`

	Traffic string   `placeholder:"FILE" help:"Envoy's access log as JSON lines; both rule sets decide its requests. Needs --map and --domain. - for stdin."`
	Map     []string `sep:"none" placeholder:"KEY=FIELD,..." help:"A descriptor of a request: for each entry KEY=FIELD, with the log field that has the value, or KEY=\"text\". Repeatable."`
	Domain  string   `placeholder:"DOMAIN" help:"Domain of Envoy's filter, for --map."`

	TimeField string `default:"start_time" help:"Log field with the time: RFC 3339, or seconds since 1970."`
	Top       int    `default:"5" help:"Number of keys to show per rule."`

	Output outputFlags `embed:""`
}

func (*diffCmd) Help() string {
	return `Compares the meaning of two rule sets: rules and limits that were added, removed or changed, with old and
new values. Moving a rule to another file, comments, or 60s instead of a minute are no differences.

With --traffic, both sets decide the requests of a log in virtual time, from empty counters. Diff then shows, per rule
and key, which requests would be newly denied and newly allowed. A line may be up to 10,000 lines out of order; diff
skips and counts later lines, and lines that it cannot read. It removes the port from remote_address.

Exit codes: 0 the rules mean the same, 1 they differ, 2 no result: wrong rules, no log, or a wrong command line.

Examples:

    weir diff /etc/weir/rules rules/
    weir diff old/ new/ --traffic access.log --domain shop --map remote_address=downstream_remote_address \
      --map 'path="/login",remote_address=downstream_remote_address' --format json`
}

// differences is the JSON output of diff.
type differences struct {
	Changes []offline.Change    `json:"changes"`
	Traffic *offline.Comparison `json:"traffic,omitempty"`
}

func (c *diffCmd) Run(ctx context.Context, io streams) error {
	o, err := c.options()
	if err != nil {
		return usage(err)
	}
	var sets [2]*descriptors.Set
	for i, path := range []string{c.Old, c.New} {
		if sets[i], err = c.readSet(ctx, io, path); err != nil {
			return err
		}
	}
	out := differences{Changes: append([]offline.Change{}, offline.Changes(sets[0], sets[1])...)} // not null in JSON
	if c.Traffic != "" {
		if out.Traffic, err = c.replay(ctx, io, sets, o); err != nil {
			fmt.Fprintf(io.err, "weir: --traffic: %s\n", err)
			return errNoAnswer
		}
	}
	if err := c.Output.print(io, &out, func() { out.print(io) }); err != nil {
		return err
	}
	if len(out.Changes) > 0 {
		return errReported
	}
	return nil
}

// options checks the flags and returns the options for reading the log.
func (c *diffCmd) options() (o offline.LogOptions, err error) {
	o = offline.LogOptions{Domain: c.Domain, TimeField: c.TimeField}
	var p problems
	for _, text := range c.Map {
		m, err := offline.ParseMappings(text)
		p.check(err == nil, "--map: %w", err)
		o.Mappings = append(o.Mappings, m)
	}
	isMapped := len(c.Map) > 0 && c.Domain != ""
	p.check(c.Traffic == "" || isMapped, "--traffic: an access log needs --domain, and --map for each descriptor that "+
		"Envoy makes, such as --map remote_address=downstream_remote_address")
	p.check(c.Traffic != "" || len(c.Map) == 0 && c.Domain == "", "--map and --domain describe a log; add --traffic FILE")
	given := 0
	for _, path := range []string{c.Old, c.New, c.Traffic} {
		if path == rules.Stdin {
			given++
		}
	}
	p.check(given <= 1, "- is stdin, which can be read only once; name files for the other inputs")
	p.check(c.Top >= 0 && c.Top <= 1000, "--top: must be between 0 and 1000, got %d", c.Top)
	return o, errors.Join(p...)
}

// readSet compiles the rules at path, and prints their errors.
func (c *diffCmd) readSet(ctx context.Context, io streams, path string) (*descriptors.Set, error) {
	files, err := readRules(ctx, io, path)
	if err != nil {
		return nil, err
	}
	set, err := compileQuietly(io, files, "; run weir check for details")
	if errors.Is(err, errReported) {
		err = errNoAnswer
	}
	return set, err
}

// openInput opens the file at path; "-" is stdin.
func openInput(path string, from streams) (io.ReadCloser, error) {
	if path == rules.Stdin {
		return io.NopCloser(from.in), nil
	}
	return os.Open(path) //nolint:gosec // the user has given the path
}

func (c *diffCmd) replay(ctx context.Context, from streams, sets [2]*descriptors.Set,
	o offline.LogOptions,
) (*offline.Comparison, error) {
	in, err := openInput(c.Traffic, from)
	if err != nil {
		return nil, err
	}
	defer in.Close() //nolint:errcheck // the file was only read
	return offline.Compare(ctx, sets[0], sets[1], in, o, c.Top)
}

func (out *differences) print(to streams) {
	for i := range out.Changes {
		printChange(to.out, &out.Changes[i])
	}
	if len(out.Changes) == 0 {
		fmt.Fprintln(to.out, "the rules mean the same")
	} else {
		fmt.Fprintln(to.out, count(len(out.Changes), "change"))
	}
	if out.Traffic != nil {
		printTraffic(to, out.Traffic)
		printRules(to.out, out.Traffic.Rules)
	}
}

func printChange(w io.Writer, c *offline.Change) {
	marks := map[string]string{offline.Added: "+", offline.Removed: "-", offline.Changed: "~", offline.Reordered: "^"}
	fmt.Fprintf(w, "%s %s", marks[c.What], c.Domain)
	if c.Rule == "" {
		fmt.Fprintf(w, ": domain %s\n", c.What)
		return
	}
	fmt.Fprintf(w, ": %s: rule %s (%s)\n", c.Rule, c.What, c.Source)
	for _, f := range c.Fields {
		switch c.What {
		case offline.Added:
			fmt.Fprintf(w, "    %s: %s\n", f.Field, f.New)
		case offline.Removed:
			fmt.Fprintf(w, "    %s: %s\n", f.Field, f.Old)
		default:
			fmt.Fprintf(w, "    %s: %s -> %s\n", f.Field, cmp.Or(f.Old, "(none)"), cmp.Or(f.New, "(none)"))
		}
	}
}

// printTraffic prints the result of the replay, and to stderr what was skipped in the log.
func printTraffic(to streams, r *offline.Comparison) {
	fmt.Fprintf(to.out, "\nTraffic: %d requests from %s to %s\n", r.Requests, r.From.Format(time.RFC3339),
		r.To.Format(time.RFC3339))
	fmt.Fprintf(to.out, "denied by the old rules %d, by the new rules %d: %d newly denied, %d newly allowed\n",
		r.DeniedBefore, r.DeniedAfter, r.NewlyDenied, r.NewlyAllowed)
	for _, bad := range r.Bad {
		fmt.Fprintf(to.err, "line %d: %s\n", bad.Line, bad.Error)
	}
	if r.BadLines > 0 {
		fmt.Fprintf(to.err, "%d of %d lines skipped\n", r.BadLines, r.Lines)
	}
	for _, note := range r.Notes {
		fmt.Fprintf(to.err, "note: %s\n", note)
	}
}

// printRules prints the limits whose decisions differ, with their first keys.
func printRules(w io.Writer, rules []*offline.RuleCount) {
	if len(rules) == 0 {
		return
	}
	fmt.Fprintln(w)
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "newly denied\tnewly allowed\tin shadow mode\tlimit or key")
	for _, r := range rules {
		shadow := "-"
		if r.ShadowBefore != 0 || r.ShadowAfter != 0 {
			shadow = fmt.Sprintf("%d -> %d", r.ShadowBefore, r.ShadowAfter)
		}
		fmt.Fprintf(table, "%d\t%d\t%s\t%s\n", r.NewlyDenied, r.NewlyAllowed, shadow,
			strings.TrimSpace(r.Domain+": "+r.Rule+" "+r.Limit))
		for _, k := range r.Keys {
			fmt.Fprintf(table, "%d\t%d\t\t  %s\n", k.NewlyDenied, k.NewlyAllowed, words.Line(k.Key))
		}
	}
	_ = table.Flush() // w keeps its first error
}
