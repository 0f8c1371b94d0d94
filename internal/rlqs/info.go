package rlqs

import (
	"slices"
	"time"

	"github.com/weir-ratelimit/weir/internal/adminapi"
)

// Stats say what a Keeper has and did. Counts are since New.
type Stats struct {
	Streams int   // open
	Broken  int   // streams that broke while what was assigned to them may be in force
	Buckets int   // of both
	Debt    int64 // requests that passed uncharged, and are to be charged

	AllowAll, DenyAll, TokenBuckets, Abandoned uint64 // assignments sent

	Charged   uint64 // hits charged in advance
	Returned  uint64 // hits of those that were not used, and returned to their windows
	Over      uint64 // requests that passed uncharged, and were reported
	Shortages uint64 // assignments lowered because a counter had not enough left
	Failures  uint64 // charges that the store did not answer
	Dropped   uint64 // usages of buckets that were too many
	Refused   uint64 // usages of buckets whose limits or entries cannot be assigned

	Reports         uint64 // messages of Envoys
	Allowed, Denied uint64 // requests that Envoys reported as admitted and as denied
	InvalidEnded    uint64 // streams ended since a message was wrong
	TooMany         uint64 // streams refused

	OldestReport time.Duration // the longest time since a report of a bucket of an open stream
}

// Stats returns what the Keeper has and did.
func (k *Keeper) Stats() Stats {
	k.mu.Lock()
	defer k.mu.Unlock()
	now, st, debt := k.now(), k.stats, 0.0
	for s := range k.streams {
		if s.closed {
			st.Broken++
		} else {
			st.Streams++
		}
	}
	k.eachClient(func(c *client) {
		st.Buckets++
		if !c.isBroken() {
			st.OldestReport = max(st.OldestReport, now-c.reported)
		}
	})
	for _, b := range k.books {
		debt += b.debt
	}
	st.Debt = clampHits(debt)
	return st
}

// State is what holds of a bucket.
type State string

// The states, of several Envoys the last one in this order.
const (
	Unlimited State = "unlimited" // by its rule
	Denied    State = "denied"    // by its rule
	Shadow    State = "shadow"    // its limits deny nothing
	Assigned  State = "assigned"
	Waiting   State = "waiting"   // until something is assigned
	Contended State = "contended" // it asks for more than its part of the limit
	Failing   State = "failing"   // the store does not answer: on_store_failure decides
)

// contendedBelow is the part of what a bucket asks for below which its assignment counts as too little.
const contendedBelow = 0.95

// Buckets returns what all Envoys together have of each bucket, in no order.
func (k *Keeper) Buckets() (all []*adminapi.Quota) {
	type name struct {
		domain string
		id     BucketID
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	now, of := k.now(), map[name]*adminapi.Quota{}
	k.eachClient(func(c *client) {
		at := name{c.stream.domain, c.id}
		b := of[at]
		if b == nil {
			b = &adminapi.Quota{Domain: at.domain, Descriptor: string(at.id), State: string(Unlimited)}
			if c.rule != nil {
				b.Rule = c.rule.Path
				for _, l := range c.rule.Limits {
					b.Limits = append(b.Limits, l.String())
				}
			}
			of[at] = b
			all = append(all, b)
		}
		if b.Envoys++; c.isBroken() {
			b.Broken++
		}
		b.Rate, b.Burst, b.Wanted, b.Passed = b.Rate+c.rate, b.Burst+int64(c.burst), b.Wanted+c.want, b.Passed+c.passRate
		b.ReportAge = max(b.ReportAge, (now - c.reported).Seconds())
		if s := c.state(); slices.Index(states, s) > slices.Index(states, State(b.State)) {
			b.State = string(s)
		}
	})
	return all
}

var states = []State{Unlimited, Denied, Shadow, Assigned, Waiting, Contended, Failing}

func (c *client) state() State {
	switch {
	case c.expires == 0:
		return Waiting
	case c.book != nil && c.book.isFailing:
		return Failing
	case c.book != nil && c.rate < c.want*contendedBelow:
		return Contended
	case c.book != nil:
		return Assigned
	case len(c.shadow) > 0:
		return Shadow
	case c.fixed == DenyAll:
		return Denied
	default:
		return Unlimited
	}
}
