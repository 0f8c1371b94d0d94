package rules

import (
	"sync"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

// Source reads the rule files at the paths, and the values files that they name.
func Source(paths ...string) reload.Source {
	return SourceFor(descriptors.Process{}, reload.Files{Paths: paths})
}

// SourceFor is Source of some files, with the pauses of process.Rest.
func SourceFor(process descriptors.Process, files reload.Files) reload.Source {
	known := includes{process: process, byHash: map[string][]reload.Include{}}
	files.Includes, files.Rest = known.of, process.Rest
	return files
}

// Descriptors converts files to the compiler's type: pkg/reload and pkg/descriptors do not know each other.
func Descriptors(files []reload.File) []rulefile.File {
	out := make([]rulefile.File, len(files))
	for i, f := range files {
		out[i] = rulefile.File(f)
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
	for _, to := range rulefile.IncludesFor(i.process, file) {
		all = append(all, reload.Include{Name: to.Name, At: to.At.String()})
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.byHash) >= maxKnown {
		clear(i.byHash)
	}
	i.byHash[hash] = all
	return all
}
