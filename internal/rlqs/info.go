package rlqs

import (
	"cmp"
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

// Status implements admin.Quotas.
func (k *Keeper) Status() adminapi.QuotaStatus {
	s := k.Stats()
	return adminapi.QuotaStatus{Streams: s.Streams, Broken: s.Broken, Buckets: s.Buckets, Uncharged: s.Over, Debt: s.Debt}
}

// List implements admin.Quotas: the sums of all Envoys, those first that miss most.
func (k *Keeper) List(domain, rule string, n int) *adminapi.QuotaList {
	all := &adminapi.QuotaList{QuotaStatus: k.Status(), Buckets: []adminapi.Quota{}}
	k.mu.Lock()
	at := map[string]int{} // in all.Buckets, by domain and ID
	k.eachClient(func(c *client) {
		b := adminapi.Quota{Domain: c.stream.domain, Descriptor: string(c.id)}
		if r := c.target.Rule; r != nil {
			b.Rule = r.Path
			for _, l := range r.Limits {
				b.Limits = append(b.Limits, l.String())
			}
		}
		if domain != "" && b.Domain != domain || rule != "" && b.Rule != rule {
			return
		}
		name := b.Domain + "\x00" + b.Descriptor
		if _, ok := at[name]; !ok {
			at[name] = len(all.Buckets)
			all.Buckets = append(all.Buckets, b)
		}
		c.addTo(&all.Buckets[at[name]], k.now())
	})
	k.mu.Unlock()
	missing := func(b *adminapi.Quota) float64 {
		if b.State != "contended" {
			return 0
		}
		return b.Wanted - b.Rate
	}
	slices.SortFunc(all.Buckets, func(a, b adminapi.Quota) int {
		return cmp.Or(cmp.Compare(missing(&b), missing(&a)), cmp.Compare(b.Rate, a.Rate), cmp.Compare(a.Domain, b.Domain),
			cmp.Compare(a.Descriptor, b.Descriptor))
	})
	all.Found = len(all.Buckets)
	all.Buckets = all.Buckets[:min(n, all.Found)]
	for i := range all.Buckets {
		b := &all.Buckets[i]
		b.Entries, _ = BucketID(b.Descriptor).Entries() // it has been checked
	}
	return all
}

// addTo adds what the client has to the sum of its bucket.
func (c *client) addTo(b *adminapi.Quota, now time.Duration) {
	if b.Envoys++; c.isBroken() {
		b.Broken++
	}
	b.Rate, b.Burst, b.Wanted, b.Passed = b.Rate+c.rate, b.Burst+int64(c.burst), b.Wanted+c.want, b.Passed+c.passRate
	b.ReportAge = max(b.ReportAge, (now - c.reported).Seconds())
	b.State = states[max(slices.Index(states, b.State), slices.Index(states, c.state()))]
}

// states are those of a bucket, of several Envoys the last one in this order. Denied and unlimited buckets are so by
// their rule; of those in shadow, the limits deny nothing; a contended one asks for more than it has.
var states = []string{"unlimited", "denied", "shadow", "assigned", "waiting", "contended", "failing"}

func (c *client) state() string {
	switch {
	case c.expires == 0:
		return "waiting"
	case c.book != nil && c.book.isFailing:
		return "failing"
	case c.book != nil && c.rate < c.want*.95:
		return "contended"
	case c.book != nil:
		return "assigned"
	case c.fixed == DenyAll:
		return "denied"
	case len(c.target.Hits) > 0:
		return "shadow"
	default:
		return "unlimited"
	}
}
