package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/rlqs"
	"github.com/weir-ratelimit/weir/internal/rules"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

type checkCmd struct {
	Paths   []string `arg:"" optional:"" name:"path" help:"Rule files, and directories of them; - for stdin."`
	Stores  []string `placeholder:"NAME" help:"Names from serve's --named-store; other names are errors. Default: any name."`
	Regions string   `placeholder:"NAME=PERCENT,..." help:"serve's --regions: the part of each region must be valid. Default: any regions."`
	Format  string   `default:"text" enum:"text,json,github" help:"text, json or github (annotations of GitHub Actions)."`
	Strict  bool     `help:"Treat warnings as errors."`

	Quota        bool `help:"Also check that Envoy's filter rate_limit_quota can use every rule (serve --quota)."`
	LenientRules bool `help:"Report as warnings what serve --lenient-rules accepts."`
}

func (*checkCmd) Help() string {
	return `Lists every error and warning as file:line:column, with the line and what to write instead: up to 1,000 of
each. Warnings are for example a rule that no request can reach, a max_wait above Envoy's timeout, a value that looks
like a regular expression, or a number that begins with 0.

With --quota, a limit that cannot be divided among Envoys is an error; a limit too small to divide well is a warning.

Text goes to stderr, or to stdout if there is nothing to report; other formats go to stdout.

Exit codes: 0 no error, 1 an error (with --strict, also a warning), 2 a path cannot be read.

Examples:

    weir check rules/
    weir check rules/ --strict --format github
    weir check --quota rules/
    helm template . | yq 'select(.kind == "ConfigMap").data["rules.yaml"]' | weir check -`
}

func (c *checkCmd) Run(ctx context.Context, io streams) error {
	if len(c.Paths) == 0 {
		return usage(errors.New("give the paths of rule files, or - for stdin"))
	}
	files, err := readRules(ctx, io, c.Paths...)
	if err != nil {
		return err
	}
	process := descriptors.Process{Lenient: c.LenientRules, Stores: c.Stores}
	if c.Regions != "" {
		if process.Regions, err = descriptors.ParseRegions(c.Regions); err != nil {
			return usage(fmt.Errorf("--regions: %w", err))
		}
	}
	var further []func(*descriptors.Set) (errs, warnings descriptors.Errors)
	if c.Quota {
		further = append(further, rlqs.Check)
	}
	f, err := rules.Check(process, files, further...)
	if err != nil {
		return err
	}
	if err := printFindings(io, f, c.Format); err != nil {
		return err
	}
	if f.Errors > 0 || c.Strict && f.Warnings > 0 {
		return errReported
	}
	return nil
}

// printFindings writes the findings in this format.
func printFindings(io streams, f *rules.Findings, format string) error {
	switch format {
	case "json":
		return printJSON(io, f)
	case "github":
		f.GitHub(io.out)
		printSummary(io.out, io.out, f)
	default:
		for i := range f.Problems {
			f.Problems[i].Text(io.err)
		}
		printSummary(io.out, io.err, f)
	}
	return nil
}

// printSummary writes one line with the numbers of findings.
func printSummary(out, err io.Writer, f *rules.Findings) {
	if f.Errors > 0 {
		fmt.Fprintf(err, "%s in %s\n", count(f.Errors, "error"), count(f.Files, "file"))
		return
	}
	warned := "ok"
	if f.Warnings > 0 {
		warned = count(f.Warnings, "warning")
	}
	fmt.Fprintf(out, "%s, %s, %s, %s: %s\n", count(f.Files, "file"), count(f.Domains, "domain"),
		count(f.Rules, "rule"), count(f.Limits, "limit"), warned)
}

// readRules reads rule files as serve does; "-" is stdin. If it cannot read a path, it returns a usage error.
func readRules(ctx context.Context, from streams, paths ...string) ([]reload.File, error) {
	files, err := rules.ReadFiles(ctx, from.in, paths...)
	if err != nil {
		return nil, usage(err)
	}
	return files, nil
}

// compile compiles the files, and prints their warnings, or their errors and verdict. Limits may name any store.
func compile(io streams, files []reload.File, verdict string) (*descriptors.Set, error) {
	set, err := compileQuietly(io, files, verdict)
	if err != nil {
		return nil, err
	}
	for _, w := range set.Warnings() {
		fmt.Fprintf(io.err, "%s:%d:%d: warning: %s\n", w.File, w.Line, w.Column, w.Msg)
	}
	return set, nil
}

// compileQuietly is compile without the warnings.
func compileQuietly(io streams, files []reload.File, verdict string) (*descriptors.Set, error) {
	set, err := rules.Compile(descriptors.Process{}, files)
	if errs := (descriptors.Errors{}); errors.As(err, &errs) {
		fmt.Fprintf(io.err, "%s\n%s in %s%s\n", errs, count(errs.Count(), "error"), count(len(files), "file"), verdict)
		return nil, errReported
	}
	return set, err
}

// count returns a number with its noun, such as "1 file" or "2 files".
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
