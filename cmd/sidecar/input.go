package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/weir-ratelimit/weir/internal/rules"
	"github.com/weir-ratelimit/weir/pkg/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

// stdin is the path that stands for standard input, and stdinName how messages name what was read from it.
const (
	stdin     = "-"
	stdinName = "stdin"
)

// readRules reads rule files as serve does, - being standard input. Its error says that a path cannot be read: it is of the
// command line.
func readRules(ctx context.Context, from streams, command, flag string, paths ...string) ([]reload.File, error) {
	fail := func(err error) ([]reload.File, error) {
		if flag != "" {
			err = fmt.Errorf("%s: %w", flag, err)
		}
		return nil, &usageError{err: err, command: command}
	}
	var files []reload.File
	if i := slices.Index(paths, stdin); i >= 0 {
		var err error
		if files, err = readStdin(ctx, from.in); err != nil {
			return fail(err)
		}
		paths = slices.Delete(slices.Clone(paths), i, i+1)
	}
	if len(paths) == 0 && len(files) > 0 {
		return files, nil
	}
	if err := checkPaths(paths); err != nil {
		return fail(err)
	}
	snapshot, err := rules.Source(paths...).Read(ctx)
	if err != nil {
		return fail(err)
	}
	return append(files, snapshot.Files...), nil
}

// readStdin reads one rule file, and the values files that it names.
func readStdin(ctx context.Context, in io.Reader) ([]reload.File, error) {
	text, err := io.ReadAll(io.LimitReader(in, reload.MaxFileSize+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", stdinName, err)
	}
	if len(text) > reload.MaxFileSize {
		return nil, fmt.Errorf("%s: larger than %d MiB, the most that is read of one file", stdinName, reload.MaxFileSize>>20)
	}
	file := reload.File{Name: stdinName, Data: text}
	files := []reload.File{file}
	for _, to := range rulefile.Includes(rulefile.File(file)) {
		name := to.Name
		included, err := reload.Paths(name).Read(ctx)
		if errors.Is(err, os.ErrNotExist) {
			continue // the compiler says so
		}
		if err != nil {
			return nil, err
		}
		files = append(files, reload.File{Name: name, Data: included.Files[0].Data, Included: true})
	}
	return files, nil
}

// checkPaths says which paths are not there.
func checkPaths(paths []string) error {
	var errs []error
	for _, path := range paths {
		if _, err := os.Stat(path); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
