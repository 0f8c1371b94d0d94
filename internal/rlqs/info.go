package rlqs

import (
	"time"

	"github.com/weir-ratelimit/weir/internal/adminapi"
)

// Stats are the state and the counts of a Keeper since New.
type Stats struct {
	Streams int   // number of open streams
	Broken  int   // number of broken streams whose assignments may still apply
	Buckets int   // number of buckets of all these streams
	Debt    int64 // number of requests that passed uncharged and are to be charged

	Sent [Abandon + 1]uint64 // assignments by Strategy

	Charged   uint64 // hits charged in advance
	Refunded  uint64 // charged hits that were not used, and were refunded to their windows
	Over      uint64 // requests that passed uncharged and were reported
	Shortages uint64 // assignments lowered because a counter had too few hits left
	Failures  uint64 // charges that the store did not decide
	Dropped   uint64 // usages of buckets that exceed a maximum
	Refused   uint64 // usages of buckets whose limits or entries cannot be assigned

	Reports         uint64 // messages of Envoys
	Allowed, Denied uint64 // requests that Envoys reported as admitted and as denied
	InvalidEnded    uint64 // streams ended because of an invalid message

	OldestReport time.Duration // longest time since a report of an open stream's bucket
}

// Stats returns the current statistics.
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

// Status returns the part of GET /status about quotas.
func (k *Keeper) Status() adminapi.QuotaStatus {
	s := k.Stats()
	return adminapi.QuotaStatus{Streams: s.Streams, Broken: s.Broken, Buckets: s.Buckets, Uncharged: s.Over, Debt: s.Debt}
}
