package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/weir-ratelimit/weir/internal/rulefiles"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

// checkCmd is `sidecar check`.
type checkCmd struct {
	Paths  []string `arg:"" name:"path" help:"Rule files, and directories of them."`
	Stores []string `placeholder:"NAME" help:"Names that serve has as --named-store; a limit with another store is an error. Without it every name is taken."`
}

// Help is shown below the one line of it.
func (*checkCmd) Help() string {
	return `Reads the files as serve does and prints everything that is wrong with them, one line each:
file:line:column: what, and what to write instead. The exit code is 0 if all is well, 1 if something
is wrong, 2 if a path cannot be read.

Example:

    sidecar check rules/`
}

// Run prints errors to stderr, or one line to stdout.
func (c *checkCmd) Run(ctx context.Context, io streams) error {
	for _, path := range c.Paths {
		if _, err := os.Stat(path); err != nil {
			return &usageError{err: err, command: "sidecar check"}
		}
	}
	snapshot, err := rulefiles.Source(c.Paths...).Read(ctx)
	if err != nil {
		return &usageError{err: err, command: "sidecar check"}
	}
	files := snapshot.Files
	set, err := compile(io, files, c.Stores, "")
	if err != nil {
		return err
	}
	rules := map[*descriptors.Rule]bool{}
	for _, l := range set.Limits() {
		rules[l.Rule] = true
	}
	fmt.Fprintf(io.out, "%s, %s, %s with %s: ok\n", count(len(files), "file"), count(len(set.Domains()), "domain"),
		count(len(rules), "rule"), count(len(set.Limits()), "limit"))
	return nil
}

// compile tells what is wrong with the files, with a verdict behind it, and what to be warned of. Limits may name the
// stores; nil is any.
func compile(io streams, files []reload.File, stores []string, verdict string) (*descriptors.Set, error) {
	set, err := descriptors.Compile(rulefiles.Descriptors(files))
	if err == nil && stores != nil {
		if unknown := set.UnknownStores(stores); unknown != nil {
			err = unknown
		}
	}
	if errs := (descriptors.Errors{}); errors.As(err, &errs) {
		fmt.Fprintf(io.err, "%s\n%s in %s%s\n", errs, count(len(errs), "error"), count(len(files), "file"), verdict)
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
