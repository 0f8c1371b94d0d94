package rules

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

// SourceFor returns a source that reads rule files and the values files that they include.
func SourceFor(files reload.Files) reload.Source {
	files.MaxSizeName = maxSizeFlag
	files.Includes = func(f reload.File) (all []reload.Include) {
		for _, to := range rulefile.Includes(rulefile.File(f)) {
			all = append(all, reload.Include(to))
		}
		return all
	}
	return files
}

// Descriptors converts files to the type of the compiler, which does not know pkg/reload.
func Descriptors(files []reload.File) []rulefile.File {
	out := make([]rulefile.File, len(files))
	for i, f := range files {
		out[i] = rulefile.File(f)
	}
	return out
}

// maxSizeFlag is the flag that bounds the bytes of all rules of a source.
const maxSizeFlag = "--max-rules-size"

// Stdin is the path that means standard input; stdinName is its name in messages.
const (
	Stdin     = "-"
	stdinName = "stdin"
)

// ReadFiles reads the rule files at the paths once. It reads the path Stdin from stdin.
func ReadFiles(ctx context.Context, stdin io.Reader, paths ...string) (files []reload.File, err error) {
	if i := slices.Index(paths, Stdin); i >= 0 {
		if files, err = readStdin(ctx, stdin); err != nil {
			return nil, err
		}
		paths = slices.Delete(slices.Clone(paths), i, i+1)
	}
	if len(paths) == 0 && len(files) > 0 {
		return files, nil
	}
	if err := CheckPaths(paths); err != nil {
		return nil, err
	}
	snapshot, err := SourceFor(reload.Files{Paths: paths}).Read(ctx)
	if err != nil {
		return nil, err
	}
	return append(files, snapshot.Files...), nil
}

// readStdin reads one rule file and the values files that it includes.
func readStdin(ctx context.Context, in io.Reader) ([]reload.File, error) {
	text, err := io.ReadAll(io.LimitReader(in, reload.DefaultMaxSize+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", stdinName, err)
	}
	if len(text) > reload.DefaultMaxSize {
		return nil, fmt.Errorf("%s: larger than %d MiB, the maximum for one file", stdinName, reload.DefaultMaxSize>>20)
	}
	file := reload.File{Name: stdinName, Data: text}
	files := []reload.File{file}
	for _, to := range rulefile.Includes(rulefile.File(file)) {
		name := to.Name
		included, err := reload.Paths(name).Read(ctx)
		if errors.Is(err, os.ErrNotExist) {
			continue // the compiler reports it
		}
		if err != nil {
			return nil, err
		}
		files = append(files, reload.File{Name: name, Data: included.Files[0].Data, Included: true})
	}
	return files, nil
}

// CheckPaths returns an error for each path that does not exist.
func CheckPaths(paths []string) error {
	var errs []error
	for _, path := range paths {
		if _, err := os.Stat(path); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Compile compiles rule files.
func Compile(process descriptors.Process, files []reload.File) (*descriptors.Set, error) {
	return rulefile.CompileFor(process, Descriptors(files))
}
