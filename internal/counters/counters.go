// Package counters looks at single counters of a running process in their rules' terms, and forgets them.
package counters

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/internal/boosts"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Options are what the counters are found by. Nil functions are of what there is not.
type Options struct {
	// Rules returns the live rules.
	Rules func() *descriptors.Set
	// Store has the counters: it is asked itself, and not what answers in its place.
	Store limiter.Store
	// Boosted is the boost that is in force for a limit's counter, nil if none is, and what it makes of the limit.
	Boosted func(l *descriptors.Limit, key string) (*boosts.Boost, *descriptors.Limit)
	// Denied is what this process would answer a hit by a denial that it knows.
	Denied func(h limiter.Hit) (limiter.Decision, bool)
	// Leased is how many permits of a counter this process has on lease, and whether it takes any.
	Leased func(key string) (int64, bool)
	// Reset forgets a counter in the store and in all processes.
	Reset func(ctx context.Context, key string) (existed bool, err error)
	// KeyOf is the counter's key of a key in Redis.
	KeyOf func(name string) (key string, ok bool)
}

// Counters are those of a process. They are safe for concurrent use.
type Counters struct{ o Options }

// New puts the parts together.
func New(o Options) *Counters { return &Counters{o} }

// InvalidError says what is wrong with what was asked.
type InvalidError struct{ msg string }

// Error implements error.
func (e *InvalidError) Error() string { return e.msg }

// State is the counters of one descriptor.
type State struct {
	Domain     string  `json:"domain"`
	Descriptor string  `json:"descriptor"`
	Rule       string  `json:"rule"`   // its path
	Source     string  `json:"source"` // file:line
	Mode       string  `json:"mode"`   // enforce, shadow or quota
	Unlimited  bool    `json:"unlimited,omitempty"`
	Limits     []Limit `json:"limits"`
}

// Limit is one counter, and the limit that it is of as it is in force: boosted, if a boost is.
type Limit struct {
	Limit           string `json:"limit,omitempty"` // its name
	Algorithm       string `json:"algorithm"`
	Key             string `json:"key"`             // of the counter
	Store           string `json:"store,omitempty"` // that the limit names
	RequestsPerUnit int64  `json:"requests_per_unit"`
	Window          string `json:"window"`
	Capacity        int64  `json:"capacity"` // most at once

	// One of these says what the algorithm counts, in hits.
	Count  *int64 `json:"count,omitempty"`  // of a window
	Level  *int64 `json:"level,omitempty"`  // of a funnel
	Tokens *int64 `json:"tokens,omitempty"` // of a bucket
	Stored *int64 `json:"stored,omitempty"` // unused permits
	Queued *int64 `json:"queued,omitempty"` // of a queue
	InUse  *int64 `json:"in_use,omitempty"` // requests in flight

	// Remaining is how many requests of cost 1 would pass now.
	Remaining int64 `json:"remaining"`
	// RetryAfter is how long to wait until one more passes: 0 for now. Nil, which is null in JSON, says that no wait helps.
	RetryAfter *float64 `json:"retry_after_seconds"`
	// ResetAfter is the time until the limit is fully available again, of a fixed_window until the window ends, and
	// ResetAt the moment by the sidecar's clock.
	ResetAfter float64   `json:"reset_after_seconds"`
	ResetAt    time.Time `json:"reset_at"`

	Boost *Boost `json:"boost,omitempty"`
	// KnownDenial says that this sidecar denies a request of cost 1 without asking the store, for so long.
	KnownDenial *Denial `json:"known_denial,omitempty"`
	// Lease is of permits that this sidecar has taken ahead: they count as used.
	Lease *Lease `json:"lease,omitempty"`
}

// Boost is the boost that is in force.
type Boost struct {
	ID        string    `json:"id"`
	Factor    float64   `json:"factor"`
	Unboosted int64     `json:"requests_per_unit"` // as the rule has it
	Reason    string    `json:"reason"`
	Author    string    `json:"author"`
	ExpiresAt time.Time `json:"expires_at"`
}

// Denial is a known denial. Ends is nil, null in JSON, if it does not end.
type Denial struct {
	Ends *float64 `json:"ends_in_seconds"`
}

// Lease is permits on lease.
type Lease struct {
	Permits int64 `json:"permits"`
}

// Get looks at the counters of a descriptor: nothing is charged. Its error is an *InvalidError, or wraps boosts.ErrNotFound or
// limiter.ErrUnavailable.
func (c *Counters) Get(ctx context.Context, domain, descriptor string) (*State, error) {
	rule, entries, err := c.find(domain, descriptor)
	if err != nil {
		return nil, err
	}
	s := &State{
		Domain: domain, Descriptor: descriptors.FormatEntries(entries), Rule: rule.Path, Source: rule.Source,
		Mode: modes[rule.Mode], Unlimited: rule.Unlimited, Limits: []Limit{},
	}
	for _, l := range rule.Limits {
		key := string(l.AppendKey(nil, entries))
		shown, err := c.look(ctx, l, key)
		if err != nil {
			return nil, err
		}
		s.Limits = append(s.Limits, *shown)
	}
	return s, nil
}

var modes = map[limiter.Mode]string{limiter.Enforce: "enforce", limiter.Shadow: "shadow", limiter.Quota: "quota"}

// find is the rule of a descriptor.
func (c *Counters) find(domain, descriptor string) (*descriptors.Rule, []descriptors.Entry, error) {
	entries, err := descriptors.ParseEntries(descriptor)
	if err != nil {
		return nil, nil, &InvalidError{"descriptor: " + err.Error()}
	}
	d, err := boosts.Domain(c.o.Rules(), domain)
	if err != nil {
		return nil, nil, err
	}
	rule := d.Match(entries)
	if rule == nil {
		return nil, nil, fmt.Errorf("descriptor: no rule of domain %q matches it (%w); weir explain says why", domain, boosts.ErrNotFound)
	}
	return rule, entries, nil
}

// look asks the store about one counter.
func (c *Counters) look(ctx context.Context, l *descriptors.Limit, key string) (*Limit, error) {
	boost, in := c.o.Boosted(l, key)
	p := in.Policy
	var out [1]limiter.Decision
	if err := c.o.Store.Take(ctx, []limiter.Hit{{Key: key, Policy: p, Look: true}}, out[:]); err != nil {
		return nil, err
	}
	d := &out[0]
	s := &Limit{
		Limit: l.Name, Algorithm: p.Algorithm().String(), Key: key, Store: p.Store(),
		RequestsPerUnit: p.Limit(), Window: descriptors.FormatDuration(p.Window()), Capacity: p.Capacity(),
		Remaining: d.Remaining, ResetAfter: d.ResetAfter.Seconds(), ResetAt: time.Now().Add(d.ResetAfter).UTC(),
	}
	s.RetryAfter = seconds(d.RetryAfter)
	s.count(p, d)
	if boost != nil {
		s.Boost = &Boost{
			ID: boost.ID, Factor: boost.Factor, Unboosted: l.Policy.Limit(), Reason: boost.Reason, Author: boost.Author, ExpiresAt: boost.ExpiresAt,
		}
	}
	if c.o.Denied != nil {
		if known, ok := c.o.Denied(limiter.Hit{Key: key, Policy: p, N: 1}); ok {
			s.KnownDenial = &Denial{Ends: seconds(known.RetryAfter)}
		}
	}
	if c.o.Leased != nil {
		if permits, leased := c.o.Leased(key); leased {
			s.Lease = &Lease{permits}
		}
	}
	return s, nil
}

// seconds is a wait, nil where no wait helps.
func seconds(wait time.Duration) *float64 {
	if wait == limiter.Never {
		return nil
	}
	s := wait.Seconds()
	return &s
}

// count says what is left in the algorithm's own words.
func (s *Limit) count(p *limiter.Policy, d *limiter.Decision) {
	left, used := d.Remaining, max(0, p.Capacity()-d.Remaining)
	switch p.Algorithm() {
	case limiter.FixedWindow, limiter.SlidingLog:
		s.Count = &used
	case limiter.SlidingWindow:
		if p.Capacity() == p.Limit() { // else what remains may be of one segment
			s.Count = &used
		}
	case limiter.Funnel:
		s.Level = &used
	case limiter.TokenBucket:
		s.Tokens = &left
	case limiter.SmoothBursty, limiter.SmoothWarmingUp:
		s.Stored = &left
	case limiter.LeakyQueue:
		s.Queued = &used
	case limiter.Concurrency:
		s.InUse = &used
	}
}

// Target is the counters that are to be reset: those of a descriptor, or one by its key. One of the two is given.
type Target struct {
	Domain     string `json:"domain,omitempty"`
	Descriptor string `json:"descriptor,omitempty"`
	Key        string `json:"key,omitempty"` // as GET /keys/get shows it, or as weir keys does
}

// Forgotten is what was reset.
type Forgotten struct {
	Domain   string    `json:"domain"`
	Rule     string    `json:"rule,omitempty"` // empty for a counter by its key
	Counters []Counter `json:"counters"`
	// Tried are the keys of all that were to be reset.
	Tried []string `json:"-"`
}

// Counter is one that was reset.
type Counter struct {
	Key     string `json:"key"`
	Existed bool   `json:"existed"` // false: it was as new
}

// Reset forgets counters, in the store and in all processes. The error is as of Get; with it the counters up to the last one of
// Forgotten are reset, if it is not nil, and of the next one it is not known.
func (c *Counters) Reset(ctx context.Context, t Target) (*Forgotten, error) {
	f, keys, err := c.target(t)
	if err != nil {
		return nil, err
	}
	f.Tried = keys
	for _, key := range keys {
		existed, err := c.o.Reset(ctx, key)
		if err != nil {
			return f, err
		}
		f.Counters = append(f.Counters, Counter{Key: key, Existed: existed})
	}
	return f, nil
}

// target has the keys of the counters.
func (c *Counters) target(t Target) (*Forgotten, []string, error) {
	switch {
	case (t.Key == "") == (t.Descriptor == ""):
		return nil, nil, &InvalidError{"key, descriptor: give one of the two"}
	case t.Key != "" && t.Domain != "":
		return nil, nil, &InvalidError{"key: goes without domain, which is in the key"}
	case t.Key != "":
		key := t.Key
		if c.o.KeyOf != nil {
			if of, ok := c.o.KeyOf(key); ok {
				key = of
			}
		}
		terms, ok := descriptors.ParseKey(key)
		name, _, _ := strings.Cut(terms.Algorithm, ".")
		if _, err := limiter.ParseAlgorithm(name); !ok || err != nil {
			return nil, nil, &InvalidError{"key: this is no counter's key, such as funnel|shop|client=ann: weir get and weir keys show them"}
		}
		if rules := c.o.Rules(); rules != nil {
			key = rules.CanonicalKey(key)
		}
		return &Forgotten{Domain: terms.Domain, Counters: []Counter{}}, []string{key}, nil
	}
	rule, entries, err := c.find(t.Domain, t.Descriptor)
	if err != nil {
		return nil, nil, err
	}
	if len(rule.Limits) == 0 {
		return nil, nil, &InvalidError{fmt.Sprintf("rule %q (%s) has no limit, and so no counter", rule.Path, rule.Source)}
	}
	keys := make([]string, len(rule.Limits))
	for i, l := range rule.Limits {
		keys[i] = string(l.AppendKey(nil, entries))
	}
	return &Forgotten{Domain: t.Domain, Rule: rule.Path, Counters: []Counter{}}, keys, nil
}
