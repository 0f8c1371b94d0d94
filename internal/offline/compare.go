package offline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
)

// maxKeys is the maximum number of keys that Compare counts separately, over all rules.
const maxKeys = 100_000

// Comparison is the result of Compare. Numbers are requests.
type Comparison struct {
	Log

	DeniedBefore int64 `json:"denied_before"`
	DeniedAfter  int64 `json:"denied_after"`
	NewCount
	// Rules are the limits whose decisions differ, in descending order of requests.
	Rules []*RuleCount `json:"rules"`
	// Notes are sentences about the limits of the comparison.
	Notes []string `json:"notes,omitempty"`
}

// Compare replays a log with two rule sets and reports the requests that only one of the sets denies. It reports at
// most top keys per rule. It returns the errors of ReadLog.
func Compare(
	ctx context.Context, before, after *descriptors.Set, in io.Reader, o LogOptions, top int,
) (*Comparison, error) {
	c := newComparing()
	for i, set := range []*descriptors.Set{before, after} {
		engine, err := NewEngine(set) //nolint:contextcheck // the engine ends with Close
		if err != nil {
			return nil, err
		}
		defer engine.Close()
		c.engines[i] = engine
	}
	log, err := ReadLog(ctx, in, o, func(r *Request) error { return c.decide(ctx, r) })
	if err != nil {
		return nil, err
	}
	c.report.Log = *log
	c.finish(top, before, after)
	return &c.report, nil
}

// comparing is a comparison in progress.
type comparing struct {
	engines  [2]*Engine // before and after
	rules    map[countedRule]*RuleCount
	keys     map[*RuleCount]map[string]*KeyCount
	keyCount int // number of keys over all rules
	report   Comparison
}

func newComparing() *comparing {
	return &comparing{rules: map[countedRule]*RuleCount{}, keys: map[*RuleCount]map[string]*KeyCount{}}
}

// decide decides a request with both sets.
func (c *comparing) decide(ctx context.Context, r *Request) error {
	before, err := c.engines[0].Decide(ctx, r)
	after, err2 := c.engines[1].Decide(ctx, r)
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	c.count(before, after)
	return nil
}

// RuleCount has the requests that a limit decides differently. The shadow counts are requests that the limit would have
// denied if it were not in shadow mode, per set.
type RuleCount struct {
	Domain string `json:"domain"`
	Rule   string `json:"rule"`
	Limit  string `json:"limit,omitempty"`
	NewCount
	ShadowBefore int64       `json:"shadow_denied_before"`
	ShadowAfter  int64       `json:"shadow_denied_after"`
	Keys         []*KeyCount `json:"keys,omitempty"` // in descending order of requests
}

// KeyCount has the requests that the counter of one key decides differently.
type KeyCount struct {
	Key string `json:"key"`
	NewCount
}

// NewCount counts the requests that only the new rules deny, and the requests that only the old rules deny.
type NewCount struct {
	NewlyDenied  int64 `json:"newly_denied"`
	NewlyAllowed int64 `json:"newly_allowed"`
}

func (c *NewCount) size() int64 { return c.NewlyDenied + c.NewlyAllowed }

type countedRule struct{ domain, rule, limit string }

// count adds both verdicts on one request.
func (c *comparing) count(before, after *decide.Verdict) {
	add := func(to *int64, yes bool) {
		if yes {
			*to++
		}
	}
	add(&c.report.DeniedBefore, before.Denied)
	add(&c.report.DeniedAfter, after.Denied)
	add(&c.report.NewlyDenied, after.Denied && !before.Denied)
	add(&c.report.NewlyAllowed, before.Denied && !after.Denied)
	for i, l := range before.Limits {
		switch outcome := before.Outcome(i); {
		case outcome == decide.ShadowDenied:
			c.rule(l).ShadowBefore++
		case outcome == decide.Denied && !after.Denied:
			c.rule(l).NewlyAllowed++
			c.key(l, before.Hits[i].Key).NewlyAllowed++
		}
	}
	for i, l := range after.Limits {
		switch outcome := after.Outcome(i); {
		case outcome == decide.ShadowDenied:
			c.rule(l).ShadowAfter++
		case outcome == decide.Denied && !before.Denied:
			c.rule(l).NewlyDenied++
			c.key(l, after.Hits[i].Key).NewlyDenied++
		}
	}
}

func (c *comparing) rule(l *descriptors.Limit) *RuleCount {
	at := countedRule{l.Rule.Domain, l.Rule.Path, l.Name}
	if c.rules[at] == nil {
		c.rules[at] = &RuleCount{Domain: at.domain, Rule: at.rule, Limit: at.limit}
		c.keys[c.rules[at]] = map[string]*KeyCount{}
	}
	return c.rules[at]
}

// key returns the count for a counter of the limit. After maxKeys keys, new keys of a rule share one count.
func (c *comparing) key(l *descriptors.Limit, key string) *KeyCount {
	all, text := c.keys[c.rule(l)], key
	if terms, ok := descriptors.ParseKey(key); ok {
		text = descriptors.FormatEntries(terms.Entries)
	}
	if all[text] == nil && c.keyCount >= maxKeys {
		text = "(others)"
	}
	if all[text] == nil {
		all[text] = &KeyCount{Key: text}
		c.keyCount++
	}
	return all[text]
}

// finish completes the report, with at most top keys per rule.
func (c *comparing) finish(top int, sets ...*descriptors.Set) {
	for _, rule := range c.rules {
		if rule.size() == 0 && rule.ShadowBefore == rule.ShadowAfter {
			continue
		}
		c.report.Rules = append(c.report.Rules, rule)
		rule.Keys = slices.SortedFunc(maps.Values(c.keys[rule]), func(a, b *KeyCount) int {
			return cmp.Or(cmp.Compare(b.size(), a.size()), cmp.Compare(a.Key, b.Key))
		})
		rule.Keys = rule.Keys[:min(len(rule.Keys), top)]
	}
	slices.SortFunc(c.report.Rules, func(a, b *RuleCount) int {
		return cmp.Or(cmp.Compare(b.size(), a.size()), cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.Rule, b.Rule),
			cmp.Compare(a.Limit, b.Limit))
	})
	c.report.Notes = notes(sets...)
	for i, name := range []string{"old", "new"} {
		if evicted := c.engines[i].Evicted(); evicted > 0 {
			c.report.Notes = append(c.report.Notes, fmt.Sprintf("More than %d counters were in use at once with the %s rules: "+
				"%d were dropped, and their limits may have admitted more.", maxCounters, name, evicted))
		}
	}
	if c.keyCount >= maxKeys {
		c.report.Notes = append(c.report.Notes,
			fmt.Sprintf("Only the first %d keys were counted separately; all other keys count as one, (others).", maxKeys))
	}
}

// notes returns sentences about what a replay with these rules cannot reproduce.
func notes(sets ...*descriptors.Set) []string {
	inFlight := func(l *descriptors.Limit) bool { return l.Policy.Algorithm().CountsInFlight() }
	for _, set := range sets {
		if slices.ContainsFunc(set.Limits(), inFlight) {
			return []string{"The log does not say when requests end: concurrency limits count each request until " +
				"its lease ends."}
		}
	}
	return nil
}
