package adminapi

import "time"

// Build is the answer of GET /version: what was built.
type Build struct {
	Version string `json:"version"`
	// Commit is the revision of the source code, "unknown" if the binary does not record it.
	Commit string `json:"commit"`
	// Date is the time of the commit, in RFC 3339. A build has no time of its own: it can be repeated. It may be empty.
	Date string `json:"date,omitempty"`
	// Sum is the checksum of the module that `go install MODULE@VERSION` built, empty for other builds.
	Sum      string `json:"sum,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform,omitempty"` // such as linux/amd64
}

// Status is the answer of GET /status: what GET /readyz, /version and /rules show, without the rules.
type Status struct {
	Ready     bool         `json:"ready"`
	Checks    []Check      `json:"checks"`
	Build     Build        `json:"build"`
	StartedAt time.Time    `json:"started_at"`
	Now       time.Time    `json:"now"`
	Store     string       `json:"store"`
	TopKeys   bool         `json:"top_keys"` // GET /top answers
	Rules     RulesSummary `json:"rules"`
}

// Check is one condition of readiness.
type Check struct {
	Name  string `json:"name"`
	Error string `json:"error,omitempty"` // why it fails; empty if it holds
	Note  string `json:"note,omitempty"`
}

// RulesSummary is the state of the rules, and how many there are.
type RulesSummary struct {
	RulesStatus
	Files      int `json:"files"`       // in place of their names
	ErrorCount int `json:"error_count"` // Errors has the first of them
	Domains    int `json:"domains"`
	Rules      int `json:"rules"`
	Limits     int `json:"limits"`
}

// Reloaded is the answer of POST /reload.
type Reloaded struct {
	Result string `json:"result"` // ok or refused
	RulesStatus
}

// Error is the answer to a request that failed.
type Error struct {
	Error string `json:"error"`
}
