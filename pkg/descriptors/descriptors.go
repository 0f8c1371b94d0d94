// Package descriptors lets a Go program use the rules of Weir: it finds a request's limits, and returns hits on them.
//
// A [Set] holds compiled rules. Package rulefile compiles YAML files to a Set, and [Compile] compiles rules that a Go
// program makes. A request has a domain and descriptors, each a list of entries. [Set.AppendHits] returns the hits of
// the request, and a [limiter.Store] decides all hits together:
//
//	request := [][]descriptors.Entry{{{Key: "user", Value: "ann"}}, {{Key: "path", Value: "/login"}}}
//	hits := set.AppendHits(nil, "shop", 1, request...)
//	decisions := make([]limiter.Decision, len(hits))
//	if err := store.Take(ctx, hits, decisions); err != nil { ... }
//	if limiter.Admitted(hits, decisions) { ... }
//
// [Set.Match] returns the [Rule] for one descriptor, with its limits, its metadata, and its response to denied clients.
//
// docs/reference/rules.md describes the language. The time of a match does not grow with the number of rules.
package descriptors

import (
	"maps"
	"math"
	"slices"

	core "github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Entry is an entry of a request's descriptor: a Key and a Value, both strings.
type Entry = core.Entry

// Errors lists all errors in rules, or the warnings of Set.Warnings. Its text has one line per error.
type Errors = core.Errors //nolint:errname // it holds several errors

// Error is one of Errors. File, Line and Column are its position, and Msg is the error and how to correct it. A rule
// that a Go program makes has no lines, and File is its domain and path.
type Error = core.Error

// Set holds compiled rules. It is immutable and safe for concurrent use.
type Set core.Set

// Compile compiles rules that a Go program makes, by domain. Within a domain, earlier patterns take precedence over
// later ones. A returned error is Errors, with all errors in the rules.
func Compile(rules map[string][]*Descriptor) (*Set, error) {
	b := core.NewBuilder(core.Process{})
	for _, domain := range slices.Sorted(maps.Keys(rules)) {
		b.Add(domain, rules[domain]...)
	}
	set, err := b.Build()
	return (*Set)(set), err
}

func (s *Set) set() *core.Set { return (*core.Set)(s) }

// Domains returns the sorted names of the domains that have rules.
func (s *Set) Domains() []string {
	var names []string
	for _, d := range s.set().Domains() {
		names = append(names, d.Name())
	}
	return names
}

// Warnings returns warnings about valid rules that may have another effect than intended.
func (s *Set) Warnings() Errors { return s.set().Warnings() }

// Match returns the rule for a descriptor with these entries. ok is false if the domain has no such rule. Each entry
// selects the next level of rules: by exact value first, then by the first pattern in file order that matches (for an
// IP address, the block with the longest prefix), then by key alone. Match allocates no memory.
func (s *Set) Match(domain string, entries []Entry) (rule Rule, ok bool) {
	r := s.set().Domain(domain).Match(entries)
	return Rule{r}, r != nil
}

// AppendHits appends the hits of a request to hits: one for each limit of the rules for its descriptors, except limits
// that another of these limits replaces. Each hit costs n. The hits of each descriptor have a separate Group. Pass all
// hits of the request to one call of limiter.Store.Take. A request without hits passes.
func (s *Set) AppendHits(hits []limiter.Hit, domain string, n int64, request ...[]Entry) []limiter.Hit {
	d := s.set().Domain(domain)
	var asked core.Asked
	for _, entries := range request {
		asked.Add(entries, d.Match(entries), nil)
	}
	asked.MakeHits(d, math.MaxInt)
	for _, h := range asked.Hits {
		h.N = n
		hits = append(hits, h)
	}
	return hits
}

// Rule is the rule for a descriptor. Only Set.Match returns a usable Rule.
type Rule struct{ rule *core.Rule }

// Path returns the rule's path in its domain, such as "remote_address" or "api_key > path=/checkout*".
func (r Rule) Path() string { return r.rule.Path }

// Source returns the rule's position in its file, as "file:line".
func (r Rule) Source() string { return r.rule.Source }

// Limits returns the rule's limits. A rule without limits admits every request.
func (r Rule) Limits() []Limit {
	var limits []Limit
	for _, l := range r.rule.Limits {
		limits = append(limits, Limit{l})
	}
	return limits
}

// Mode returns Shadow for a rule with shadow_mode, which denies no request; Quota for a rule with quota_mode, which
// denies a request only if all of the request's quotas are over; otherwise Enforce.
func (r Rule) Mode() limiter.Mode { return r.rule.Mode }

// Metadata returns the rule's `metadata` with the types of encoding/json, or nil without metadata.
func (r Rule) Metadata() map[string]any { return r.rule.Metadata }

// Response returns the rule's `response`, which belongs to the response to a denied request; nil if there is none.
func (r Rule) Response() *Response { return r.rule.Response }

// Limit is one limit of a rule.
type Limit struct{ limit *core.Limit }

// Name returns the limit's `name`, which may be empty.
func (l Limit) Name() string { return l.limit.Name }

// Policy returns the limit's policy: its algorithm and parameters.
func (l Limit) Policy() *limiter.Policy { return l.limit.Policy }

// AppendKey appends the key of the limit's counter for these entries, such as "funnel|shop|remote_address=10.0.0.1". A
// key has at most 256 bytes, and not the number of hits per window, so that an edit of this number keeps the counter.
func (l Limit) AppendKey(dst []byte, entries []Entry) []byte { return l.limit.AppendKey(dst, entries) }

// OnStoreFailure returns the limit's failure policy.
func (l Limit) OnStoreFailure() OnStoreFailure { return l.limit.OnStoreFailure }

// String returns a description of the limit for messages, such as "funnel: 10 per 1s, burst 20".
func (l Limit) String() string { return l.limit.String() }

// OnStoreFailure is a failure policy: how a request is decided while the store fails.
type OnStoreFailure = core.OnStoreFailure

// The values of OnStoreFailure.
const (
	Local = core.Local // count in the memory of this process (default)
	Allow = core.Allow // admit the request
	Deny  = core.Deny  // deny the request
	Fail  = core.Fail  // return an error
)
