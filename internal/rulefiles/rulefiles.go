// Package rulefiles reads rule files as every command does. It stands between pkg/reload, which knows files and not what
// is in them, and pkg/descriptors, which knows rules and not where they lie.
package rulefiles

import (
	"crypto/sha256"
	"sync"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

// Source is the rule files at the paths, and the values files that they name.
func Source(paths ...string) reload.Source { return SourceFor(descriptors.Process{}, paths...) }

// SourceFor is Source for a process that may want to rest.
func SourceFor(process descriptors.Process, paths ...string) reload.Source {
	known := includes{process: process, by: map[content][]string{}}
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
	by map[content][]string
}

// content is what was read.
type content struct {
	name string
	hash [sha256.Size]byte
}

func (i *includes) of(f reload.File) []string {
	file := descriptors.File(f)
	if !descriptors.MayInclude(file) {
		return nil
	}
	c := content{f.Name, sha256.Sum256(f.Data)}
	i.mu.Lock()
	names, ok := i.by[c]
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
	i.by[c] = names
	return names
}
