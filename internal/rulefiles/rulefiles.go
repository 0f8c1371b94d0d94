// Package rulefiles reads rule files as every command does. It stands between pkg/reload, which knows files and not what
// is in them, and pkg/descriptors, which knows rules and not where they lie.
package rulefiles

import (
	"sync"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

// Source is the rule files at the paths, and the values files that they name.
func Source(paths ...string) reload.Source { return SourceFor(descriptors.Process{}, paths...) }

// SourceFor is Source for a process that may want to rest.
func SourceFor(process descriptors.Process, paths ...string) reload.Source {
	known := includes{process: process, by: map[string][]string{}}
	return reload.Files{Paths: paths, Includes: known.of, Rest: process.Rest}
}

// Descriptors is the files as they are compiled.
func Descriptors(files []reload.File) []descriptors.File {
	out := make([]descriptors.File, len(files))
	for i, f := range files {
		out[i] = descriptors.File(f)
	}
	return out
}

// maxKnown bounds what is remembered of files that are there no more.
const maxKnown = 10_000

// includes are the values files that rule files name. They are remembered, for files are read every few seconds and
// rarely change, and only a parser can tell. It is safe for concurrent use.
type includes struct {
	process descriptors.Process

	mu sync.Mutex
	by map[string][]string // by the hash of the rule file
}

func (i *includes) of(f reload.File) []string {
	file := descriptors.File(f)
	if !descriptors.MayInclude(file) {
		return nil
	}
	hash := reload.NewSnapshot([]reload.File{f}).Hash
	i.mu.Lock()
	names, ok := i.by[hash]
	i.mu.Unlock()
	if ok {
		return names
	}
	names = descriptors.IncludesFor(i.process, file)
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.by) >= maxKnown {
		clear(i.by)
	}
	i.by[hash] = names
	return names
}
