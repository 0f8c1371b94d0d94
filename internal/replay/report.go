package replay

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
)

// Report is what the two sets make of the traffic. Numbers are requests, of a sampled log about those that it stands for.
type Report struct {
	// From and To are the times of the first and the last request.
	From     time.Time `json:"from"`
	To       time.Time `json:"to"`
	Requests int64     `json:"requests"`
	// Estimate says that the log is a sample: each line was replayed as the requests that it stands for, at its time.
	Estimate bool `json:"estimate"`

	DeniedBefore int64 `json:"denied_before"`
	DeniedAfter  int64 `json:"denied_after"`
	NewlyDenied  int64 `json:"newly_denied"`
	NewlyAllowed int64 `json:"newly_allowed"`
	// Rules are the limits that make the difference, those of the most requests first.
	Rules []*RuleCount `json:"rules"`

	Lines int64 `json:"lines"`
	// NotAsked is how many lines are of no request that Envoy asks about: no descriptor, or a line about others.
	NotAsked int64 `json:"lines_not_asked"`
	// LateLines came more than 10,000 lines behind their time, and were replayed behind it.
	LateLines int64     `json:"lines_late"`
	BadLines  int64     `json:"lines_bad"`
	Bad       []BadLine `json:"bad,omitempty"` // the first ones
	// DroppedLines is how many decisions the log says are missing.
	DroppedLines uint64 `json:"lines_dropped"`
	// Notes are what else to know.
	Notes []string `json:"notes,omitempty"`
}

// BadLine is one that was left out.
type BadLine struct {
	Line  int64  `json:"line"`
	Error string `json:"error"`
}

// RuleCount is a limit's part in the difference: requests that it denies by the new rules and that pass by the old ones, and
// the other way round. Shadow is what it would have denied in shadow mode, by either.
type RuleCount struct {
	Domain       string      `json:"domain"`
	Rule         string      `json:"rule"`
	Limit        string      `json:"limit,omitempty"`
	NewlyDenied  int64       `json:"newly_denied"`
	NewlyAllowed int64       `json:"newly_allowed"`
	ShadowBefore int64       `json:"shadow_denied_before"`
	ShadowAfter  int64       `json:"shadow_denied_after"`
	Keys         []*KeyCount `json:"keys,omitempty"` // those of the most requests first
}

// KeyCount is one counter's part in that.
type KeyCount struct {
	Key          string `json:"key"`
	NewlyDenied  int64  `json:"newly_denied"`
	NewlyAllowed int64  `json:"newly_allowed"`
}

func (c *RuleCount) size() int64 { return total(c.NewlyDenied, c.NewlyAllowed) }
func (c *KeyCount) size() int64  { return total(c.NewlyDenied, c.NewlyAllowed) }

type countedRule struct{ domain, rule, limit string }

type countedKey struct {
	countedRule

	key string
}

// count adds what both sides have said about n requests.
func (r *run) count(n int64) {
	before, after := r.sides[0].verdict, r.sides[1].verdict
	r.report.Requests = total(r.report.Requests, n)
	add := func(to *int64, yes bool) {
		if yes {
			*to = total(*to, n)
		}
	}
	add(&r.report.DeniedBefore, before.Denied)
	add(&r.report.DeniedAfter, after.Denied)
	add(&r.report.NewlyDenied, after.Denied && !before.Denied)
	add(&r.report.NewlyAllowed, before.Denied && !after.Denied)
	for i, l := range before.Limits {
		outcome, key := before.Outcome(i), before.Hits[i].Key
		if outcome == decide.ShadowDenied {
			add(&r.rule(l).ShadowBefore, true)
		}
		if outcome == decide.Denied && !after.Denied {
			add(&r.rule(l).NewlyAllowed, true)
			add(&r.key(l, key).NewlyAllowed, true)
		}
	}
	for i, l := range after.Limits {
		outcome, key := after.Outcome(i), after.Hits[i].Key
		if outcome == decide.ShadowDenied {
			add(&r.rule(l).ShadowAfter, true)
		}
		if outcome == decide.Denied && !before.Denied {
			add(&r.rule(l).NewlyDenied, true)
			add(&r.key(l, key).NewlyDenied, true)
		}
	}
}

func countedRuleOf(l *descriptors.Limit) countedRule {
	return countedRule{l.Rule.Domain, l.Rule.Path, l.Name}
}

func (r *run) rule(l *descriptors.Limit) *RuleCount {
	at := countedRuleOf(l)
	c := r.rules[at]
	if c == nil {
		c = &RuleCount{Domain: at.domain, Rule: at.rule, Limit: at.limit}
		r.rules[at] = c
	}
	return c
}

// key is where a counter of the limit is counted. Beyond maxKeys all others are one.
func (r *run) key(l *descriptors.Limit, key string) *KeyCount {
	at := countedKey{countedRuleOf(l), keyText(key)}
	if r.keys[at] == nil && len(r.keys) >= maxKeys {
		at.key = "(others)"
	}
	c := r.keys[at]
	if c == nil {
		c = &KeyCount{Key: at.key}
		r.keys[at] = c
	}
	return c
}

// keyText is what a counter's key says about who is counted.
func keyText(key string) string {
	terms, ok := descriptors.ParseKey(key)
	if !ok {
		return key
	}
	var parts []string
	for _, e := range terms.Entries {
		parts = append(parts, e.Key+"="+e.Value)
	}
	return strings.Join(parts, ",")
}

func (r *run) finish(before, after *descriptors.Set) {
	for k, n := range r.keys {
		c := r.rules[k.countedRule]
		c.Keys = append(c.Keys, n)
	}
	for _, c := range r.rules {
		if c.size() == 0 && c.ShadowBefore == c.ShadowAfter {
			continue
		}
		r.report.Rules = append(r.report.Rules, c)
		slices.SortFunc(c.Keys, func(a, b *KeyCount) int {
			return cmp.Or(cmp.Compare(b.size(), a.size()), cmp.Compare(a.Key, b.Key))
		})
		c.Keys = c.Keys[:min(len(c.Keys), r.o.Top)]
	}
	slices.SortFunc(r.report.Rules, func(a, b *RuleCount) int {
		return cmp.Or(cmp.Compare(b.size(), a.size()), cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Limit, b.Limit))
	})
	r.report.Notes = r.notes(before, after)
}

// notes say what the numbers do not show.
func (r *run) notes(sets ...*descriptors.Set) (notes []string) {
	say := func(yes bool, format string, args ...any) {
		if yes {
			notes = append(notes, fmt.Sprintf(format, args...))
		}
	}
	say(r.report.Estimate, "The log is a sample: each line was replayed as the requests that it stands for, all at its time, so that numbers are "+
		"an estimate, and short windows and bursts look fuller than they were. Log with --decision-log-sample 1 for an exact answer.")
	say(r.report.DroppedLines > 0, "The log says that %d sampled decisions are missing in it: these requests were not replayed.", r.report.DroppedLines)
	patterns, inFlight := map[string]bool{}, map[string]bool{}
	for _, set := range sets {
		for _, path := range set.Patterns() {
			patterns[path] = true
		}
		for _, l := range set.Limits() {
			if l.Policy.Algorithm().CountsInFlight() {
				inFlight[l.Rule.Path] = true
			}
		}
	}
	say(r.hashed && r.o.Key == nil, "Values in the log are hashes: rules that name a value did not match. Give the key file of serve as --key-file.")
	say(r.hashed && len(patterns) > 0, "Values in the log are hashes, which *, regex and cidr do not match: %s.", some(patterns))
	say(len(inFlight) > 0 && (r.o.Mappings != nil || r.report.Estimate), "The log does not say when requests end: limits of requests in flight "+
		"count each until its lease ends: %s.", some(inFlight))
	for i, name := range []string{"old", "new"} {
		evicted := r.sides[i].store.Stats().Evicted
		say(evicted > 0, "More than %d counters mattered at once by the %s rules: %d were forgotten, and their limits may have let more pass.",
			maxCounters, name, evicted)
	}
	say(len(r.keys) >= maxKeys, "Only the first %d keys were counted each by itself; the others are one, (others).", maxKeys)
	return notes
}

// some is the first names of a set.
func some(set map[string]bool) string {
	var all []string
	for name := range set {
		all = append(all, name)
	}
	slices.Sort(all)
	if len(all) > 3 {
		return fmt.Sprintf("%s and %d more", strings.Join(all[:3], ", "), len(all)-3)
	}
	return strings.Join(all, ", ")
}
