// Package adminapi has the JSON of the HTTP API of a process, once for the server and for its clients.
package adminapi

import (
	"cmp"
	"strconv"
	"time"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

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
	// LoadingSince is since when newer files are loaded, zero if none are.
	LoadingSince time.Time `json:"loading_since,omitzero"`
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

// Build is the answer of GET /version: what was built.
type Build struct {
	Version string `json:"version"`
	// Commit is the revision of the source code, "unknown" if the binary does not record it.
	Commit string `json:"commit"`
	// Date is the time of the commit, in RFC 3339. A build has no time of its own: it can be repeated. It may be empty.
	Date     string `json:"date,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform,omitempty"` // such as linux/amd64
}

// Status is the answer of GET /status: what GET /readyz, /version and /rules show, without the rules.
type Status struct {
	Ready bool `json:"ready"`
	// Degraded says what limits do while Redis does not decide; empty if it does, or if this process decides nothing.
	Degraded  string       `json:"degraded,omitempty"`
	Checks    []Check      `json:"checks"`
	Build     Build        `json:"build"`
	StartedAt time.Time    `json:"started_at"`
	Now       time.Time    `json:"now"`
	Store     string       `json:"store"`
	TopKeys   bool         `json:"top_keys"` // GET /top answers
	Rules     RulesSummary `json:"rules"`
	// Quotas is nil (null in JSON) without --quota, and from servers that are older than it.
	Quotas *QuotaStatus `json:"quotas"`
}

// QuotaStatus is the state of the parts of limits that are assigned to Envoys.
type QuotaStatus struct {
	Streams int `json:"streams"` // of Envoys that are open
	Broken  int `json:"broken"`  // that broke, while what was assigned to them may be in force
	Buckets int `json:"buckets"` // of both
	// Uncharged counts requests since the start that Envoys let pass before they were charged. Debt is those of them that
	// still are to be charged.
	Uncharged uint64 `json:"uncharged"`
	Debt      int64  `json:"debt"`
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

// KeyState is the answer of GET /keys/get: the counters of one descriptor.
type KeyState struct {
	Domain     string     `json:"domain"`
	Descriptor string     `json:"descriptor"`
	Rule       string     `json:"rule"`   // its path
	Source     string     `json:"source"` // file:line
	Mode       string     `json:"mode"`   // enforce, shadow or quota
	Unlimited  bool       `json:"unlimited,omitempty"`
	Limits     []KeyLimit `json:"limits"`
}

// KeyLimit is one counter and its limit.
type KeyLimit struct {
	Limit           string `json:"limit,omitempty"` // its name
	Algorithm       string `json:"algorithm"`
	Key             string `json:"key"`             // of the counter
	Store           string `json:"store,omitempty"` // that the limit names
	RequestsPerUnit int64  `json:"requests_per_unit"`
	Window          string `json:"window"`
	Capacity        int64  `json:"capacity"` // most at once

	// Counts is what the algorithm counts: count (of a window), level (of a funnel), tokens (of a bucket), stored (unused
	// permits), queued, in_use (requests in flight); empty if that is not one number. Counted is how many hits that is.
	Counts  string `json:"counts,omitempty"`
	Counted int64  `json:"counted"`

	// Remaining is how many requests of cost 1 would be admitted now.
	Remaining int64 `json:"remaining"`
	// RetryAfter is the time until one more is admitted: 0 for now, nil (null in JSON) if no wait helps.
	RetryAfter *float64 `json:"retry_after_seconds"`
	// ResetAfter is the time until the limit is fully available again, of a fixed_window until the window ends, and
	// ResetAt that moment by the clock of the process.
	ResetAfter float64   `json:"reset_after_seconds"`
	ResetAt    time.Time `json:"reset_at"`
}

// Wait is a wait in seconds, nil if none helps.
func Wait(wait time.Duration) *float64 {
	if wait == limiter.Never {
		return nil
	}
	s := wait.Seconds()
	return &s
}

// ResetRequest names the descriptor whose counters are to be reset.
type ResetRequest struct {
	Domain     string `json:"domain"`
	Descriptor string `json:"descriptor"`
}

// ResetResult is the answer of POST /keys/reset.
type ResetResult struct {
	Domain   string         `json:"domain"`
	Rule     string         `json:"rule"` // its path
	Counters []ResetCounter `json:"counters"`
	// Tried are the keys of all counters that were to be reset.
	Tried []string `json:"-"`
}

// ResetCounter is one that was reset.
type ResetCounter struct {
	Key     string `json:"key"`
	Existed bool   `json:"existed"` // false: its limit was fully available
}

// History is the answer of GET /history: counts over time. All lists have the same length, oldest first.
type History struct {
	// Until is when the newest counts were taken, Since when counting began: points before it are 0.
	Until time.Time `json:"until"`
	Since time.Time `json:"since"`
	// Step is the length of a point in seconds. Points begin at multiples of it since 1970; the newest one is not over.
	Step int64 `json:"step_seconds"`
	// Total is of requests.
	Total *CountsOverTime `json:"total"`
	// Denying are the limits that denied the most in the last 5 minutes, at most 5.
	Denying []LimitOverTime `json:"denying"`
}

// CountsOverTime are counts of one series.
type CountsOverTime struct {
	Allowed []uint32 `json:"allowed"`
	Denied  []uint32 `json:"denied"` // also those that shadow or quota mode let pass
	Near    []uint32 `json:"near"`   // the part of Allowed that was near the limit
}

// LimitName names a limit by its domain, by its rule's path, and by its name, or its number in a rule with several. The
// labels of metrics are the same.
type LimitName struct {
	Domain string `json:"domain"`
	Rule   string `json:"rule"`
	Limit  string `json:"limit"`
}

// NameOf names a limit: by its name, else by its number in the rule, from 1, if the rule has several.
func NameOf(l *descriptors.Limit) LimitName {
	name := LimitName{Domain: l.Rule.Domain, Rule: l.Rule.Path, Limit: l.Name}
	if number := l.Position(); name.Limit == "" && len(l.Rule.Limits) > 1 && number > 0 {
		name.Limit = strconv.Itoa(number)
	}
	return name
}

// Compare orders names by domain, rule and limit.
func (n LimitName) Compare(o LimitName) int {
	return cmp.Or(cmp.Compare(n.Domain, o.Domain), cmp.Compare(n.Rule, o.Rule), cmp.Compare(n.Limit, o.Limit))
}

// LimitOverTime is the series of one limit.
type LimitOverTime struct {
	LimitName
	CountsOverTime
}

// Counts are what was counted since the sample before.
type Counts struct {
	Allowed uint64 `json:"allowed"`
	Denied  uint64 `json:"denied"`
	Near    uint64 `json:"near"`
}

// LimitCounts are the counts of one limit.
type LimitCounts struct {
	LimitName
	Counts
}

// TopBy is the order of keys.
type TopBy string

// The orders.
const (
	ByHits   TopBy = "hits"
	ByDenied TopBy = "denied"
)

// TopKeys is the answer of GET /top.
type TopKeys struct {
	By TopBy `json:"by"`
	// Since is when the counting of what is shown began: one to two minutes ago.
	Since time.Time `json:"since"`
	// KeptPerRule is the number of keys that are counted for each rule. Hashed says that values are shown as hashes.
	KeptPerRule int  `json:"kept_per_rule"`
	Hashed      bool `json:"values_hashed"`
	// Missed is the hits of rules for which there was no room, since the process started.
	Missed uint64   `json:"missed_hits"`
	Keys   []TopKey `json:"keys"`
}

// TopKey is one key of a rule. It had Hits-HitsError to Hits hits, and Denied-DeniedError to Denied of them were
// denied.
type TopKey struct {
	Domain string `json:"domain"`
	Rule   string `json:"rule"`
	// Descriptor is the entries as commands take them: key=value,key=value.
	Descriptor string              `json:"descriptor"`
	Entries    []descriptors.Entry `json:"entries"`
	// Counter is the name of the counter that the rule's first limit keeps; empty where values are hashed.
	Counter     string `json:"counter,omitempty"`
	Hits        uint64 `json:"hits"`
	HitsError   uint64 `json:"hits_error"`
	Denied      uint64 `json:"denied"`
	DeniedError uint64 `json:"denied_error"`
	// Share is the key's part of its rule's hits, or of what the rule denied: at most 1.
	Share float64 `json:"share"`
}
