// Package starter holds the files that weir init writes: rules and an Envoy for them, for each of a few uses. A
// README.md in each says what to start.
package starter

import (
	"embed"
	"io/fs"
)

//go:embed per-client per-api-key per-path global quota envoy-module
var files embed.FS

// Uses are those in which Envoy asks Weir about each request, the plainest first. The package's directories are named
// after them, and after quota and envoy-module.
var Uses = []string{"per-client", "per-api-key", "per-path", "global"}

// Files has a use's files: README.md, envoy.yaml, and those of the directory rules.
func Files(use string) (fs.FS, error) { return fs.Sub(files, use) }
