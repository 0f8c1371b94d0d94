// Package rulefiles reads rule files as every command does. It stands between pkg/reload, which knows files and not what
// is in them, and pkg/descriptors, which knows rules and not where they lie.
package rulefiles

import (
	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

// Source is the rule files at the paths, and the values files that they name.
func Source(paths ...string) reload.Source {
	return reload.Including(func(f reload.File) []string { return descriptors.Includes(descriptors.File(f)) }, paths...)
}

// Descriptors is the files as they are compiled.
func Descriptors(files []reload.File) []descriptors.File {
	out := make([]descriptors.File, len(files))
	for i, f := range files {
		out[i] = descriptors.File(f)
	}
	return out
}
