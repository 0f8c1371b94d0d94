// Package descriptors gives a Go program the rules of Weir: which limits a request has, and the hits that charge them.
//
// A [Set] is compiled rules. Package rulefile reads it from YAML files, and [Compile] makes it of rules that are
// written in Go. A request has a domain and descriptors, each a list of entries. [Set.AppendHits] returns the hits that
// the request makes, and a [limiter.Store] decides all of them together:
//
//	request := [][]descriptors.Entry{{{Key: "user", Value: "ann"}}, {{Key: "path", Value: "/login"}}}
//	hits := set.AppendHits(nil, "shop", 1, request...)
//	decisions := make([]limiter.Decision, len(hits))
//	if err := store.Take(ctx, hits, decisions); err != nil { ... }
//	if limiter.Admitted(hits, decisions) { ... }
//
// [Set.Match] returns the [Rule] that one descriptor reaches, with its limits and with what the rule says to people and
// to denied clients.
//
// docs/reference/rules.md has the language. The time of a match does not grow with the number of rules.
package descriptors

import (
	"maps"
	"math"
	"slices"

	core "github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Entry is one Key and Value of a request's descriptor, both texts.
type Entry = core.Entry

// Errors are all things that are wrong with rules, or that Set.Warnings lists. It is an error with a line for each.
type Errors = core.Errors //nolint:errname // it is several

// Error is one of Errors. File, Line and Column say where it is, and Msg says what is wrong and what to write instead.
// Rules made in Go have no lines: File is their domain and path.
type Error = core.Error

// Set is compiled rules. It is immutable and safe for concurrent use.
type Set core.Set

// Compile compiles rules that a Go program makes, by domain. Within a domain, patterns that stand earlier are tried
// first. Its error is Errors: everything that is wrong.
func Compile(rules map[string][]*Descriptor) (*Set, error) {
	b := core.NewBuilder(core.Process{})
	for _, domain := range slices.Sorted(maps.Keys(rules)) {
		b.Add(domain, rules[domain]...)
	}
	set, err := b.Build()
	return (*Set)(set), err
}

func (s *Set) set() *core.Set { return (*core.Set)(s) }

// Domains returns the names of the domains that have rules, sorted.
func (s *Set) Domains() []string {
	var names []string
	for _, d := range s.set().Domains() {
		names = append(names, d.Name())
	}
	return names
}

// Warnings returns what is not wrong, but may not do what was meant.
func (s *Set) Warnings() Errors { return s.set().Warnings() }

// Match returns the rule of the domain that the last of the entries reaches. ok is false if there is none. Entries are
// matched one by one. The exact value goes first, then the patterns in file order (of several blocks that hold an
// address, the longest), then the key alone. Match allocates nothing.
func (s *Set) Match(domain string, entries []Entry) (rule Rule, ok bool) {
	r := s.set().Domain(domain).Match(entries)
	return Rule{r}, r != nil
}

// AppendHits appends the hits of a request to hits: one for each limit of the rules that its descriptors reach, without
// the limits that another of these replaces. Each costs n. The hits of a descriptor have a Group of their own. Decide
// all of them by one call of limiter.Store.Take. A request without hits passes.
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

// Rule is what a descriptor reaches. Only Set.Match makes one.
type Rule struct{ rule *core.Rule }

// Path names the rule in its domain: "remote_address", or "api_key > path=/checkout*".
func (r Rule) Path() string { return r.rule.Path }

// Source returns where the rule is written, as "file:line".
func (r Rule) Source() string { return r.rule.Source }

// Limits returns the rule's limits, all of which a request must pass. A rule without limits admits everything.
func (r Rule) Limits() []Limit {
	var limits []Limit
	for _, l := range r.rule.Limits {
		limits = append(limits, Limit{l})
	}
	return limits
}

// Mode is Shadow if the rule denies nothing, Quota if it denies only together with others, else Enforce.
func (r Rule) Mode() limiter.Mode { return r.rule.Mode }

// Metadata returns the rule's `metadata`: values as encoding/json decodes them, nil if there is none.
func (r Rule) Metadata() map[string]any { return r.rule.Metadata }

// Response returns what to add to the response to a denied request, nil for nothing.
func (r Rule) Response() *Response { return r.rule.Response }

// Limit is one limit of a rule.
type Limit struct{ limit *core.Limit }

// Name returns the limit's `name`, which may be empty.
func (l Limit) Name() string { return l.limit.Name }

// Policy returns how the limit counts.
func (l Limit) Policy() *limiter.Policy { return l.limit.Policy }

// AppendKey appends the key of the counter that the limit keeps for the entries that reached its rule, like
// "funnel|shop|remote_address=10.0.0.1". A key has at most 256 bytes. It depends on nothing else of the rules, so the
// counter survives an edit of the limit's rate.
func (l Limit) AppendKey(dst []byte, entries []Entry) []byte { return l.limit.AppendKey(dst, entries) }

// OnStoreFailure returns what the rule wants for a request while the store cannot answer.
func (l Limit) OnStoreFailure() OnStoreFailure { return l.limit.OnStoreFailure }

// String returns the limit for people: "funnel: 10 per 1s, burst 20".
func (l Limit) String() string { return l.limit.String() }

// OnStoreFailure says what becomes of a request while the store fails.
type OnStoreFailure = core.OnStoreFailure

// The values of OnStoreFailure.
const (
	Local = core.Local // count in the memory of this process: the default
	Allow = core.Allow // let the request pass
	Deny  = core.Deny  // deny the request
	Fail  = core.Fail  // return an error
)
