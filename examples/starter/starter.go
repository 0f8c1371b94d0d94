// Package starter holds the files that weir init writes: rules and an Envoy for them, for each of a few uses.
package starter

import (
	"embed"
	"io/fs"
	"slices"
)

//go:embed per-client per-api-key per-path global quota envoy-module
var files embed.FS

// Use is what a set of files is for.
type Use struct {
	Name     string
	Ask      string // a descriptor of the rules, for weir explain
	Try      string // arguments of curl for a request that asks with this descriptor
	Requests int    // so many of them reach the limit
	Tells    string // what they show
	Serve    string // flags of weir serve, each with a space before it
}

// Uses has the plainest first. The package's directories are named after them.
var Uses = []Use{
	{"per-client", "remote_address=192.0.2.7", "localhost:10000/", 30, "30 requests: about 20 pass (200), then 429", ""},
	{
		"per-api-key", "api_key=alice", "-H 'x-api-key: alice' localhost:10000/", 30,
		"30 requests with one key: about 20 pass (200), then 429", "",
	},
	{
		"per-path", "path=/login,remote_address=192.0.2.7", "localhost:10000/login", 10,
		"10 logins: 5 pass (200), then 429", "",
	},
	{"global", "generic_key=all", "localhost:10000/", 70, "70 requests: about 50 pass (200), then 429", ""},
}

// Quota is the use in which Envoy decides by itself.
var Quota = Use{
	Name: "quota", Ask: "generic_key=search", Try: "localhost:10000/search", Requests: 1000,
	Tells: "1,000 requests: about 5 a second pass (200) until Envoy's next report, 5 s later; then 20. The others get 429",
	Serve: " --quota",
}

// Module is the use in which Weir decides inside Envoy.
var Module = Use{
	Name: "envoy-module", Ask: "remote_address=127.0.0.1", Try: "localhost:10000/", Requests: 30,
	Tells: "30 requests: about 20 pass (200), then 429",
}

// Find returns the use of that name; ok is false if there is none.
func Find(name string) (u Use, ok bool) {
	all := append(slices.Clone(Uses), Quota, Module)
	i := slices.IndexFunc(all, func(u Use) bool { return u.Name == name })
	if i < 0 {
		return u, false
	}
	return all[i], true
}

// Files has the use's files: envoy.yaml, and those of the directory rules.
func (u Use) Files() (fs.FS, error) { return fs.Sub(files, u.Name) }
