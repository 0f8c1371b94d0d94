package rlqs

import (
	"time"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
)

// Stats say what a Keeper has and did. Counts are since New.
type Stats struct {
	Streams int   // open
	Broken  int   // streams that broke while what was assigned to them may be in force
	Buckets int   // of both
	Refused int   // of those, buckets whose limits cannot be assigned
	Debt    int64 // requests that passed uncharged, and are to be charged

	AllowAll, DenyAll, TokenBuckets, Abandoned uint64 // assignments sent

	Charged   uint64 // hits charged ahead
	Returned  uint64 // hits of those that were not used, and returned to their windows
	Over      uint64 // requests that passed uncharged, and were reported
	Shortages uint64 // assignments lowered because a counter had not enough left
	Failures  uint64 // charges that the store did not answer
	Dropped   uint64 // usages of buckets beyond Options.MaxBuckets, or beyond the share of their host

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
		if c.refused != "" {
			st.Refused++
		}
		debt += c.debt
		if !c.stream.closed {
			st.OldestReport = max(st.OldestReport, now-c.reported)
		}
	})
	st.Debt = clampHits(debt)
	return st
}

// BucketInfo is what one stream's bucket has.
type BucketInfo struct {
	Domain, Node string
	ID           BucketID
	Rule         *descriptors.Rule // nil: none
	Keys         []string          // counters that it is charged to ahead
	Assignment   Assignment
	Assigned     bool          // Assignment may be in force
	Rate, Want   float64       // requests a second, assigned and asked for
	PassRate     float64       // requests a second that passed, in the last report
	ReportAge    time.Duration // time since the last report
	Expires      time.Duration // time until the assignment ends
	Broken       bool          // its stream broke
	Shadow       bool          // its limits deny nothing
	Contended    bool          // it asks for more than its part of the limit
	Failing      bool          // the store does not answer: on_store_failure decides
	Refused      string        // why it gets no assignment
}

// Buckets returns what buckets have, at most most of them, in no order.
func (k *Keeper) Buckets(most int) []BucketInfo {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.now()
	var all []BucketInfo
	k.eachClient(func(c *client) {
		if len(all) < most {
			all = append(all, c.info(now))
		}
	})
	return all
}

// contendedBelow is the part of what a bucket asks for below which its assignment counts as too little.
const contendedBelow = 0.95

func (c *client) info(now time.Duration) BucketInfo {
	b := BucketInfo{
		Domain: c.stream.domain, Node: c.stream.node, ID: c.id, Rule: c.rule, Assignment: c.assigned,
		Assigned: c.isAssigned(now), Rate: c.rate, Want: c.want, PassRate: c.passRate, ReportAge: now - c.reported,
		Expires: max(0, c.expires-now), Broken: c.stream.closed, Shadow: len(c.enforced) == 0 && len(c.shadow) > 0,
		Refused: c.refused,
	}
	if c.group != nil {
		b.Contended, b.Failing = b.Assigned && c.rate < c.want*contendedBelow, c.group.isFailing
		for i := range c.group.hits {
			b.Keys = append(b.Keys, c.group.hits[i].Key)
		}
	}
	return b
}

// StreamInfo is what one stream's buckets have together.
type StreamInfo struct {
	Domain, Node         string
	Buckets, Refused     int
	Rate, Want, PassRate float64       // requests a second, as in BucketInfo
	ReportAge            time.Duration // time since the last report
	Broken               bool
}

// Streams returns what streams have, at most most of them, in no order: of those that broke, as long as something may
// be in force.
func (k *Keeper) Streams(most int) []StreamInfo {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.now()
	var all []StreamInfo
	for s := range k.streams {
		if len(all) >= most {
			break
		}
		of := StreamInfo{Domain: s.domain, Node: s.node, Buckets: len(s.buckets), Broken: s.closed}
		newest := time.Duration(0)
		for _, c := range s.buckets {
			of.Rate, of.Want, of.PassRate = of.Rate+c.rate, of.Want+c.want, of.PassRate+c.passRate
			newest = max(newest, c.reported)
			if c.refused != "" {
				of.Refused++
			}
		}
		if len(s.buckets) > 0 {
			of.ReportAge = now - newest
		}
		all = append(all, of)
	}
	return all
}
