package rules

import (
	"sync"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

// Source reads the rule files at the paths, and the values files that they name.
func Source(paths ...string) reload.Source { return SourceFor(descriptors.Process{}, paths...) }

// SourceFor is Source with the pauses of process.Rest.
func SourceFor(process descriptors.Process, paths ...string) reload.Source {
	known := includes{process: process, byHash: map[string][]string{}}
	return reload.Files{Paths: paths, Includes: known.of, Rest: process.Rest}
}

// Descriptors converts files to the compiler's type: pkg/reload and pkg/descriptors do not know each other.
func Descriptors(files []reload.File) []descriptors.File {
	out := make([]descriptors.File, len(files))
	for i, f := range files {
		out[i] = descriptors.File(f)
	}
	return out
}

// maxKnown bounds the files that includes remembers, some of which may no longer exist.
const maxKnown = 10_000

// includes remembers which values files a rule file names: files are read every few seconds and rarely change, and only
// a parser finds the names. It is safe for concurrent use.
type includes struct {
	process descriptors.Process

	mu     sync.Mutex
	byHash map[string][]string // by the hash of the rule file
}

func (i *includes) of(f reload.File) []string {
	file := descriptors.File(f)
	if !descriptors.MayInclude(file) {
		return nil
	}
	hash := reload.NewSnapshot([]reload.File{f}).Hash
	i.mu.Lock()
	names, ok := i.byHash[hash]
	i.mu.Unlock()
	if ok {
		return names
	}
	names = descriptors.IncludesFor(i.process, file)
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.byHash) >= maxKnown {
		clear(i.byHash)
	}
	i.byHash[hash] = names
	return names
}
