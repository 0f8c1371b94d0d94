package rules

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

// SourceFor reads rule files, and the values files that they name. Parsing them pauses as process.Rest does.
func SourceFor(process descriptors.Process, files reload.Files) reload.Source {
	files.MaxSizeName = maxSizeFlag
	known := includes{process: process, byHash: map[string][]reload.Include{}}
	files.Includes = known.of
	return files
}

// Descriptors converts files to the compiler's type: pkg/reload and internal/descriptors do not know each other.
func Descriptors(files []reload.File) []rulefile.File {
	out := make([]rulefile.File, len(files))
	for i, f := range files {
		out[i] = rulefile.File(f)
	}
	return out
}

// maxSizeFlag is the flag of serve that bounds the bytes of all rules of a source.
const maxSizeFlag = "--max-rules-size"

// maxKnown bounds the files that includes remembers, some of which may no longer exist.
const maxKnown = 10_000

// includes remembers which values files a rule file names: files are read every few seconds and rarely change, and only
// a parser finds the names. It is safe for concurrent use.
type includes struct {
	process descriptors.Process

	mu     sync.Mutex
	byHash map[string][]reload.Include // by the hash of the rule file
}

func (i *includes) of(f reload.File) []reload.Include {
	file := rulefile.File(f)
	if !rulefile.MayInclude(file) {
		return nil
	}
	hash := reload.NewSnapshot([]reload.File{f}).Hash
	i.mu.Lock()
	all, ok := i.byHash[hash]
	i.mu.Unlock()
	if ok {
		return all
	}
	for _, to := range rulefile.Includes(i.process, file) {
		all = append(all, reload.Include(to))
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.byHash) >= maxKnown {
		clear(i.byHash)
	}
	i.byHash[hash] = all
	return all
}

// Stdin is the path that stands for standard input, and stdinName its name in messages.
const (
	Stdin     = "-"
	stdinName = "stdin"
)

// ReadFiles reads the rule files at the paths once, as a process does; Stdin is read from stdin.
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
	snapshot, err := SourceFor(descriptors.Process{}, reload.Files{Paths: paths}).Read(ctx)
	if err != nil {
		return nil, err
	}
	return append(files, snapshot.Files...), nil
}

// readStdin reads one rule file, and the values files that it names.
func readStdin(ctx context.Context, in io.Reader) ([]reload.File, error) {
	text, err := io.ReadAll(io.LimitReader(in, reload.DefaultMaxSize+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", stdinName, err)
	}
	if len(text) > reload.DefaultMaxSize {
		return nil, fmt.Errorf("%s: larger than %d MiB, the most that is read", stdinName, reload.DefaultMaxSize>>20)
	}
	file := reload.File{Name: stdinName, Data: text}
	files := []reload.File{file}
	for _, to := range rulefile.Includes(descriptors.Process{}, rulefile.File(file)) {
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

// Compile compiles rule files whose limits may name the stores; nil is any.
func Compile(process descriptors.Process, files []reload.File, stores []string) (*descriptors.Set, error) {
	set, err := rulefile.CompileFor(process, Descriptors(files))
	if err == nil && stores != nil {
		if unknown := set.UnknownStores(stores); unknown != nil {
			return nil, unknown
		}
	}
	return set, err
}
