package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/weir-ratelimit/weir/internal/rules"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

// checkCmd is `weir check`.
type checkCmd struct {
	Paths  []string `arg:"" optional:"" name:"path" help:"Rule files, and directories of them; - for stdin."`
	Rules  []string `placeholder:"PATH" help:"The same, by the name that it has with other commands."`
	Stores []string `placeholder:"NAME" help:"Names that serve has as --named-store; a limit with another store is an error. Without it every name is taken."`
	Format string   `default:"text" enum:"text,json,github,sarif" help:"text for people, json, github for the annotations of GitHub Actions, or sarif (2.1.0) for code scanning."`
	JSON   bool     `name:"json" help:"The same as --format json."`
	Strict bool     `help:"Fail for warnings, too."`
}

// Help is shown below the one line of it.
func (*checkCmd) Help() string {
	return `Reads the files as serve does and says everything that is wrong with them, and what to be warned of: a rule that
no request reaches, a limit that another one makes pointless, a max_wait above Envoy's timeout, a burst of one,
a log that takes much memory, a value that looks like a block of addresses or a regex, a number that begins with 0,
a rate beside unlimited: true, a file that looks like rules and is not read because of its name. Each has
file:line:column, the line, and what to write instead. Of one file at most 1,000 of each are listed.

Text goes to stderr, one line if all is well to stdout; the other formats go to stdout.

The exit code is 0 if all is well, 1 if something is wrong (with --strict, or to be warned of), 2 if a path cannot be
read.

Examples:

    weir check rules/
    weir check rules/ --strict --format github
    weir check rules/ --format sarif > rules.sarif
    helm template . | yq 'select(.kind == "ConfigMap").data["rules.yaml"]' | weir check -`
}

// Run prints what is wrong.
func (c *checkCmd) Run(ctx context.Context, io streams) error {
	paths := slices.Concat(c.Paths, c.Rules)
	if len(paths) == 0 {
		return &usageError{err: errors.New("give the paths of rule files, or - for stdin"), command: "weir check"}
	}
	files, err := readRules(ctx, io, "weir check", "", paths...)
	if err != nil {
		return err
	}
	f, err := rules.Check(files, c.Stores)
	if err != nil {
		return err
	}
	f.Warn(rules.NotRead(ctx, paths...))
	if c.JSON {
		c.Format = "json"
	}
	if err := printFindings(io, f, c.Format); err != nil {
		return err
	}
	if f.Errors > 0 || c.Strict && f.Warnings > 0 {
		return errTold
	}
	return nil
}

// printFindings writes the findings in the format.
func printFindings(io streams, f *rules.Findings, format string) error {
	switch format {
	case "json":
		return printJSON(io, f)
	case "sarif":
		return printJSON(io, f.SARIF(build().Version))
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

// printSummary writes one line.
func printSummary(out, err io.Writer, f *rules.Findings) {
	if f.Errors > 0 {
		fmt.Fprintf(err, "%s in %s\n", count(f.Errors, "error"), count(f.Files, "file"))
		return
	}
	warned := "ok"
	if f.Warnings > 0 {
		warned = count(f.Warnings, "warning")
	}
	fmt.Fprintf(out, "%s, %s, %s with %s: %s\n", count(f.Files, "file"), count(f.Domains, "domain"),
		count(f.Rules, "rule"), count(f.Limits, "limit"), warned)
}

// compile prints what is wrong with the files, followed by a verdict, and the warnings. Limits may name the stores; nil is
// any.
func compile(io streams, files []reload.File, stores []string, verdict string) (*descriptors.Set, error) {
	set, err := rules.Compile(files, stores)
	if errs := (descriptors.Errors{}); errors.As(err, &errs) {
		fmt.Fprintf(io.err, "%s\n%s in %s%s\n", errs, count(errs.Count(), "error"), count(len(files), "file"), verdict)
		return nil, errTold
	}
	if err != nil {
		return nil, err
	}
	for _, w := range set.Warnings() {
		fmt.Fprintf(io.err, "%s:%d:%d: warning: %s\n", w.File, w.Line, w.Column, w.Msg)
	}
	return set, nil
}

// count is "1 file", "2 files".
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
