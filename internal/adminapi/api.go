// Package adminapi has the JSON types of the HTTP API and its client.
package adminapi

import (
	"cmp"
	"strconv"
	"time"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// RulesStatus is the state of the rules: the active rules, and the errors of the last load.
type RulesStatus struct {
	// Hash is the hash of the files that the active rules were compiled from; empty if there are none.
	Hash string `json:"hash"`
	// LoadedAt is when the active rules became active.
	LoadedAt time.Time `json:"loaded_at,omitzero"`
	// Files are the names of the active rules' files.
	Files []string `json:"files"`
	// Errors are the errors in the files of the last load; empty if it succeeded.
	Errors []string `json:"errors,omitempty"`
	// ErrorsAt is when the errors were found.
	ErrorsAt time.Time `json:"errors_at,omitzero"`
	// LoadingSince is when the load in progress began; zero if there is none.
	LoadingSince time.Time `json:"loading_since,omitzero"`
	// Warnings are the first 100 of WarningCount warnings about the active rules.
	Warnings     []string `json:"warnings,omitempty"`
	WarningCount int      `json:"warning_count,omitempty"`
	// Published is nil if no rules come from Redis.
	Published *PublishedStatus `json:"published,omitempty"`
	// XDS is nil if no rules come over xDS.
	XDS *XDSStatus `json:"xds,omitempty"`
}

// XDSStatus is the state of the rules from a control plane.
type XDSStatus struct {
	Server    string `json:"server"` // xds://host:port
	Connected bool   `json:"connected"`
	// Error is the reason why there is no connection; empty while there is one.
	Error string `json:"error,omitempty"`
	// Version is the version of the last accepted response. Domains is the number of domains that are now in use.
	Version string `json:"version"`
	Domains int    `json:"domains"`
	// ReceivedAt is when the latest response arrived.
	ReceivedAt time.Time `json:"received_at,omitzero"`
	// RefusedDomains is the number of domains in the latest response that are not used, so that their previous rules stay
	// active. Findings are the first 100 of FindingCount reasons.
	RefusedDomains int      `json:"refused_domains,omitempty"`
	Findings       []string `json:"findings,omitempty"`
	FindingCount   int      `json:"finding_count,omitempty"`
	// Connections, Accepted and Refused count streams and responses since the start.
	Connections uint64 `json:"connections"`
	Accepted    uint64 `json:"accepted"`
	Refused     uint64 `json:"refused"`
}

// PublishedStatus is the state of the rules published in Redis.
type PublishedStatus struct {
	// Version is the version of the active set, or 0; Hash, Author and PublishedAt describe that set.
	Version     uint64    `json:"version"`
	Hash        string    `json:"hash"`
	Author      string    `json:"author"`
	PublishedAt time.Time `json:"published_at,omitzero"`
	// Newest is the version that was read last. If it differs from Version, it was refused: see RulesStatus.Errors.
	Newest uint64 `json:"newest_version"`
	// Error is the error of the last read from Redis, or "".
	Error string `json:"error,omitempty"`
}

// Build is the response of GET /version.
type Build struct {
	Version string `json:"version"`
	// Commit is the revision of the source code, or "unknown".
	Commit string `json:"commit"`
	// Date is the time of the commit in RFC 3339, or "". There is no time of the build, because builds are reproducible.
	Date     string `json:"date,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform,omitempty"` // such as linux/amd64
}

// Status is the response of GET /status: /readyz, /version and /rules without the rules.
type Status struct {
	Ready bool `json:"ready"`
	// Problem is a sentence about the most important thing that is wrong, or "".
	Problem string `json:"problem,omitempty"`
	// Degraded is the effect on limits while Redis does not decide; empty if Redis decides, or the process does not.
	Degraded  string       `json:"degraded,omitempty"`
	Checks    []Check      `json:"checks"`
	Build     Build        `json:"build"`
	StartedAt time.Time    `json:"started_at"`
	Now       time.Time    `json:"now"`
	Store     string       `json:"store"`
	TopKeys   bool         `json:"top_keys"` // whether GET /top is available
	Rules     RulesSummary `json:"rules"`
	// Quotas is nil (null in JSON) without --quota, and from older servers.
	Quotas *QuotaStatus `json:"quotas"`
}

// QuotaStatus is the state of quotas of Envoys.
type QuotaStatus struct {
	Streams int `json:"streams"` // open streams of Envoys
	Broken  int `json:"broken"`  // broken streams whose assignments may still apply
	Buckets int `json:"buckets"` // buckets of all these streams
	// Uncharged counts requests since the start that Envoys admitted before they were charged. Debt is the part of them
	// that is still to be charged.
	Uncharged uint64 `json:"uncharged"`
	Debt      int64  `json:"debt"`
}

// Check is one condition of readiness.
type Check struct {
	Name  string `json:"name"`
	Error string `json:"error,omitempty"` // why the condition does not hold, or ""
	Note  string `json:"note,omitempty"`
}

// RulesSummary is the state of the rules without the names of files, and the numbers of rules.
type RulesSummary struct {
	RulesStatus
	Files      int `json:"files"`       // number of files
	ErrorCount int `json:"error_count"` // number of errors; Errors has the first errors
	Domains    int `json:"domains"`
	Rules      int `json:"rules"`
	Limits     int `json:"limits"`
}

// Reloaded is the response of POST /reload.
type Reloaded struct {
	Result string `json:"result"` // ok or refused
	RulesStatus
}

// Error is the response to a failed request.
type Error struct {
	Error string `json:"error"`
}

// KeyState is the response of GET /keys/get: the counters of one descriptor.
type KeyState struct {
	Domain     string     `json:"domain"`
	Descriptor string     `json:"descriptor"`
	Rule       string     `json:"rule"`   // the rule's path
	Source     string     `json:"source"` // file:line
	Mode       string     `json:"mode"`   // enforce, shadow or quota
	Unlimited  bool       `json:"unlimited,omitempty"`
	Limits     []KeyLimit `json:"limits"`
}

// KeyLimit is a limit with one of its counters.
type KeyLimit struct {
	Limit           string `json:"limit,omitempty"` // the limit's name
	Algorithm       string `json:"algorithm"`
	Key             string `json:"key"`             // the counter's key
	Store           string `json:"store,omitempty"` // name of the limit's store
	RequestsPerUnit int64  `json:"requests_per_unit"`
	Window          string `json:"window"`
	Capacity        int64  `json:"capacity"` // maximum number of hits at once
	// Estimate and AtMost are the least and the most hits that a request is charged at its start; 0 without a reservation.
	Estimate int64 `json:"estimate,omitempty"`
	AtMost   int64 `json:"at_most,omitempty"`

	// Counts is the kind of number in Counted: count (in a window), level (of a funnel), tokens (of a bucket), stored
	// (unused permits), queued, or in_use (requests in flight). It is empty if the algorithm has no such number.
	Counts  string `json:"counts,omitempty"`
	Counted int64  `json:"counted"`

	// Remaining is the number of requests of cost 1 that would be admitted now.
	Remaining int64 `json:"remaining"`
	// RetryAfter is the time until one more request would be admitted, or nil (null in JSON) if waiting does not help.
	RetryAfter *float64 `json:"retry_after_seconds"`
	// ResetAfter is the time until the limit is fully available again, or for fixed_window, until the window ends. ResetAt
	// is that time by the clock of the process.
	ResetAfter float64   `json:"reset_after_seconds"`
	ResetAt    time.Time `json:"reset_at"`
}

// Wait returns a wait in seconds, or nil if waiting does not help.
func Wait(wait time.Duration) *float64 {
	if wait == limiter.Never {
		return nil
	}
	s := wait.Seconds()
	return &s
}

// ResetRequest is the body of POST /keys/reset: the descriptor whose counters to reset.
type ResetRequest struct {
	Domain     string `json:"domain"`
	Descriptor string `json:"descriptor"`
}

// ResetResult is the response of POST /keys/reset.
type ResetResult struct {
	Domain   string         `json:"domain"`
	Rule     string         `json:"rule"` // the rule's path
	Counters []ResetCounter `json:"counters"`
	// Tried are the keys of all counters of the descriptor.
	Tried []string `json:"-"`
}

// ResetCounter is a counter that was reset.
type ResetCounter struct {
	Key     string `json:"key"`
	Existed bool   `json:"existed"` // false: its limit was fully available
}

// History is the response of GET /history: counts over time. All lists have the same length, oldest first.
type History struct {
	// Until is when the latest counts were taken. Since is when counting began: earlier points are 0.
	Until time.Time `json:"until"`
	Since time.Time `json:"since"`
	// Step is the length of a point in seconds. Points begin at multiples of it since 1970; the latest is incomplete.
	Step int64 `json:"step_seconds"`
	// Total counts requests.
	Total *CountsOverTime `json:"total"`
	// Denying are the limits that denied the most in the last 5 minutes, at most 5.
	Denying []LimitOverTime `json:"denying"`
}

// CountsOverTime are counts of one series.
type CountsOverTime struct {
	Allowed []uint32 `json:"allowed"`
	Denied  []uint32 `json:"denied"` // including requests that shadow or quota mode admitted
	Near    []uint32 `json:"near"`   // the part of Allowed that was near the limit
}

// LimitName identifies a limit by its domain, its rule's path, and its name or its number in the rule. Labels of
// metrics are the same.
type LimitName struct {
	Domain string `json:"domain"`
	Rule   string `json:"rule"`
	Limit  string `json:"limit"`
}

// NameOf returns a limit's LimitName: with its name, or if the rule has several limits, its number from 1.
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

// Counts are counts since the previous sample.
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

// ReservationCounts are counts of a limit's reservation since the process started. Costs are in hits.
type ReservationCounts struct {
	Charged uint64 `json:"charged"` // charged at the starts of requests
	// Corrected is the number of hits that Ends have charged in addition or, if it is below 0, returned.
	Corrected int64 `json:"corrected"`
	// Ends is the number of ends with a token. EndsWithoutToken charged their whole cost. EndsLost were lost because Redis
	// failed.
	Ends             uint64 `json:"ends"`
	EndsWithoutToken uint64 `json:"ends_without_token"`
	EndsLost         uint64 `json:"ends_lost"`
	// RealPerCharged is the real cost of the requests of Ends, divided by their charge at the start; nil (null in JSON)
	// before the first end.
	RealPerCharged *float64 `json:"real_per_charged"`
}

// TopBy is the order of keys.
type TopBy string

// Values of TopBy.
const (
	ByHits   TopBy = "hits"
	ByDenied TopBy = "denied"
)

// TopKeys is the response of GET /top.
type TopKeys struct {
	By TopBy `json:"by"`
	// Since is when counting the shown hits began: one to two minutes ago.
	Since time.Time `json:"since"`
	// KeptPerRule is the number of keys counted per rule. Hashed reports whether values are shown as hashes.
	KeptPerRule int  `json:"kept_per_rule"`
	Hashed      bool `json:"values_hashed"`
	// Missed is the number of hits, since the process started, that were not counted because there was no room.
	Missed uint64   `json:"missed_hits"`
	Keys   []TopKey `json:"keys"`
}

// TopKey is a key of a rule, with Hits-HitsError to Hits hits, of which Denied-DeniedError to Denied were denied.
type TopKey struct {
	Domain string `json:"domain"`
	Rule   string `json:"rule"`
	// Descriptor has the entries in the form of commands: key=value,key=value.
	Descriptor string              `json:"descriptor"`
	Entries    []descriptors.Entry `json:"entries"`
	// Counter is the key of the counter of the rule's first limit; empty if values are hashed.
	Counter     string `json:"counter,omitempty"`
	Hits        uint64 `json:"hits"`
	HitsError   uint64 `json:"hits_error"`
	Denied      uint64 `json:"denied"`
	DeniedError uint64 `json:"denied_error"`
	// Share is the key's part of its rule's hits, or denied hits; at most 1.
	Share float64 `json:"share"`
}
