package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/offline/explain"
)

type explainCmd struct {
	Descriptors []string         `arg:"" name:"descriptor" help:"The request's descriptors, each as key=value,key=value in Envoy's order; \\, is a comma in a value."`
	Domain      string           `placeholder:"NAME" help:"Domain of Envoy's rate limit filter; optional if the rules have only one."`
	Rules       []string         `placeholder:"PATH" help:"Use these rule files or directories (- for stdin) with empty counters."`
	Server      adminapi.Options `embed:"" group:"server"`

	Hits   uint32   `default:"1" help:"Cost of each descriptor (hits_addend)."`
	Expect []string `placeholder:"ok|over|none|RULE" help:"Fail unless this holds: ok or over (the response), none (no limit applies), or a rule that a descriptor reaches (its path, its file:line, or a limit's name). Repeatable."`

	Output outputFlags `embed:""`
}

func (*explainCmd) Help() string {
	return `Shows, for each entry of a descriptor, which rule it matches and why. If no limit applies, it shows where
matching stops, with up to three keys or values of that level. Then it shows the limits, their counters and the
response.

With --rules it uses these files and empty counters; otherwise the rules and counters of a running process. It charges
nothing. With --expect it tests rules, for example in CI. For several requests, see weir test.

Exit codes: 0 explained, and every expectation met; 1 an expectation failed; 2 no result: a wrong or unreadable rule
file, no response from the process, or a wrong command line.

Examples:

    weir explain --rules rules/ remote_address=10.0.0.1
    weir explain --rules rules/ --domain shop api_key=abc,path=/checkout remote_address=10.0.0.1
    weir explain --rules rules/ --domain shop --hits 21 --expect over --expect per-client remote_address=10.0.0.1
    weir explain --server http://127.0.0.1:8080 --domain shop remote_address=10.0.0.1`
}

// Run prints the report to stdout, and failed expectations to stderr.
func (c *explainCmd) Run(ctx context.Context, io streams) error {
	q, err := c.question()
	if err != nil {
		return usage(err)
	}
	var found *explain.Report
	if len(c.Rules) > 0 {
		found, err = c.offline(ctx, io, q)
	} else {
		found, err = c.live(ctx, q)
	}
	if err != nil {
		return noAnswer(io, err)
	}
	if err = c.Output.print(io, found, func() { _ = found.Text(io.out) }); err != nil {
		return err
	}
	for _, expected := range c.Expect {
		if missing := found.Missing(expected); missing != "" {
			fmt.Fprintf(io.err, "weir: --expect: %s\n", missing)
			err = errReported
		}
	}
	return err
}

// question checks the flags and parses the descriptors.
func (c *explainCmd) question() (explain.Question, error) {
	q := explain.Question{Domain: c.Domain, Hits: c.Hits}
	var p problems
	for i, text := range c.Descriptors {
		entries, err := descriptors.ParseEntries(text)
		p.check(err == nil, "descriptor %d: %w", i+1, err)
		q.Descriptors = append(q.Descriptors, entries)
	}
	p.check(c.Hits > 0, "--hits: must be at least 1")
	return q, errors.Join(p...)
}

// noAnswer prints err and returns an error with exit code 2, because 1 means a failed expectation.
func noAnswer(io streams, err error) error {
	if usage := (*usageError)(nil); errors.As(err, &usage) {
		return err
	}
	report(io.err, err)
	return errNoAnswer
}

func (c *explainCmd) offline(ctx context.Context, io streams, q explain.Question) (*explain.Report, error) {
	files, err := readRules(ctx, io, c.Rules...)
	if err != nil {
		return nil, err
	}
	set, err := compile(io, files, "")
	if err != nil {
		return nil, err
	}
	report, err := explain.Offline(ctx, set, q)
	if err != nil {
		return nil, usage(err)
	}
	return report, nil
}

func (c *explainCmd) live(ctx context.Context, q explain.Question) (*explain.Report, error) {
	client, err := connect(c.Server) //nolint:contextcheck // it connects only to a socket of this machine
	if err != nil {
		return nil, err
	}
	defer client.Close()
	report := &explain.Report{}
	return report, client.Get(ctx, "/explain", explain.Query(q), report)
}
