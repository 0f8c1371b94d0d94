package rlqs

import (
	"time"

	"github.com/weir-ratelimit/weir/internal/adminapi"
)

// Stats say what a Keeper has and did. Counts are since New.
type Stats struct {
	Streams int   // open
	Broken  int   // streams that broke while what was assigned to them may be in force
	Buckets int   // of both
	Debt    int64 // requests that passed uncharged, and are to be charged

	Sent [Abandon + 1]uint64 // assignments, by Strategy

	Charged   uint64 // hits charged in advance
	Refunded  uint64 // hits of those that were not used, and refunded to their windows
	Over      uint64 // requests that passed uncharged, and were reported
	Shortages uint64 // assignments lowered because a counter had not enough left
	Failures  uint64 // charges that the store did not answer
	Dropped   uint64 // usages of buckets that were too many
	Refused   uint64 // usages of buckets whose limits or entries cannot be assigned

	Reports         uint64 // messages of Envoys
	Allowed, Denied uint64 // requests that Envoys reported as admitted and as denied
	InvalidEnded    uint64 // streams ended since a message was wrong

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
	st.Debt = wholeHits(debt)
	return st
}

// Status is what GET /status shows.
func (k *Keeper) Status() adminapi.QuotaStatus {
	s := k.Stats()
	return adminapi.QuotaStatus{Streams: s.Streams, Broken: s.Broken, Buckets: s.Buckets, Uncharged: s.Over, Debt: s.Debt}
}
