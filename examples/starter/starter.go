// Package starter holds the files that weir init writes: rules and an Envoy for them, for each of a few uses.
package starter

import (
	"embed"
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

//go:embed per-client per-api-key per-path global
var files embed.FS

// Uses are what there are files for, the plainest first. The package's directories are named after them.
var Uses = []string{"per-client", "per-api-key", "per-path", "global"}

// Try are requests that reach the limit of a use, for curl.
var Try = map[string]string{
	"per-client":  "localhost:10000/",
	"per-api-key": "-H 'x-api-key: alice' localhost:10000/",
	"per-path":    "localhost:10000/login",
	"global":      "localhost:10000/",
}

// Ask is a descriptor of such a request, for weir explain.
var Ask = map[string]string{
	"per-client":  "remote_address=192.0.2.7",
	"per-api-key": "api_key=alice",
	"per-path":    "path=/login,remote_address=192.0.2.7",
	"global":      "generic_key=all",
}

// Files are the files of a use: envoy.yaml, and those of the directory rules. The error says which uses there are.
func Files(use string) (fs.FS, error) {
	if slices.Contains(Uses, use) {
		return fs.Sub(files, use)
	}
	return nil, fmt.Errorf("there are no files for %q: use %s", use, strings.Join(Uses, ", "))
}
