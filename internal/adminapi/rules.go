// Package adminapi has the JSON of the HTTP API of a process, once for the server and for its clients.
package adminapi

import "time"

// RulesStatus is the state of the rules: which are in force, and what was wrong at the last load.
type RulesStatus struct {
	// Hash is of the content of the files that the live rules were compiled from; empty if no rules are live.
	Hash string `json:"hash"`
	// LoadedAt is when the live rules went live.
	LoadedAt time.Time `json:"loaded_at,omitzero"`
	// Files are the names of the files that the live rules come from.
	Files []string `json:"files"`
	// Errors are what was wrong with the files at the last load, one error each; empty if it was good.
	Errors []string `json:"errors,omitempty"`
	// ErrorsAt is when they were found.
	ErrorsAt time.Time `json:"errors_at,omitzero"`
	// Warnings are what the live rules have that may not do what was meant: the first 100 of WarningCount.
	Warnings     []string `json:"warnings,omitempty"`
	WarningCount int      `json:"warning_count,omitempty"`
	// Published is nil where no rules come from Redis.
	Published *PublishedStatus `json:"published,omitempty"`
	// XDS is nil where no rules come by xDS.
	XDS *XDSStatus `json:"xds,omitempty"`
}

// XDSStatus is the state of the rules that a control plane sends by xDS.
type XDSStatus struct {
	Server    string `json:"server"` // xds://host:port
	Connected bool   `json:"connected"`
	// Error is why there is no connection.
	Error string `json:"error,omitempty"`
	// Version is of the answer that was accepted last, and Domains how many domains it and those before left in use.
	Version string `json:"version"`
	Domains int    `json:"domains"`
	// ReceivedAt is when the newest answer came.
	ReceivedAt time.Time `json:"received_at,omitzero"`
	// RefusedDomains is how many domains of the newest answer are not used: the last good rules of each stay. Findings say
	// why: the first 100 of FindingCount.
	RefusedDomains int      `json:"refused_domains,omitempty"`
	Findings       []string `json:"findings,omitempty"`
	FindingCount   int      `json:"finding_count,omitempty"`
	// Connections, Accepted and Refused count streams and answers since the start.
	Connections uint64 `json:"connections"`
	Accepted    uint64 `json:"accepted"`
	Refused     uint64 `json:"refused"`
}

// PublishedStatus is the state of the rules that are published in Redis.
type PublishedStatus struct {
	// Version is of the set that is live, 0 if none is; the next three fields describe it.
	Version     uint64    `json:"version"`
	Hash        string    `json:"hash"`
	Author      string    `json:"author"`
	PublishedAt time.Time `json:"published_at,omitzero"`
	// Newest is the version that was read last. If it is not Version, it was refused: see RulesStatus.Errors.
	Newest uint64 `json:"newest_version"`
	// Error is why the last read from Redis failed.
	Error string `json:"error,omitempty"`
}
