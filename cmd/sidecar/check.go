package main

import (
	"context"
	"errors"
	"fmt"
	"os"

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
	snapshot, err := reload.Including(includes, c.Paths...).Read(ctx)
	if err != nil {
		return &usageError{err: err, command: "sidecar check"}
	}
	files := make([]descriptors.File, len(snapshot.Files))
	for i, f := range snapshot.Files {
		files[i] = descriptors.File(f)
	}
	set, err := descriptors.Compile(files)
	if err == nil && c.Stores != nil {
		if unknown := set.UnknownStores(c.Stores); unknown != nil {
			err = unknown
		}
	}
	if errs := (descriptors.Errors{}); errors.As(err, &errs) {
		fmt.Fprintf(io.err, "%s\n%s in %s\n", errs, count(len(errs), "error"), count(len(files), "file"))
		return errTold
	}
	if err != nil {
		return err
	}
	for _, w := range set.Warnings() {
		fmt.Fprintf(io.err, "%s:%d:%d: warning: %s\n", w.File, w.Line, w.Column, w.Msg)
	}
	rules := map[*descriptors.Rule]bool{}
	for _, l := range set.Limits() {
		rules[l.Rule] = true
	}
	fmt.Fprintf(io.out, "%s, %s, %s with %s: ok\n", count(len(files), "file"), count(len(set.Domains()), "domain"),
		count(len(rules), "rule"), count(len(set.Limits()), "limit"))
	return nil
}

// includes are the values files that a rule file names.
func includes(f reload.File) []string { return descriptors.Includes(descriptors.File(f)) }

// count is "1 file", "2 files".
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
