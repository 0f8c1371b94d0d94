package rlqs

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/weir-ratelimit/weir/pkg/reload"
)

// Stream has one Envoy's reports and assignments for one domain.
type Stream struct {
	keeper       *Keeper
	host, domain string
	full         chan struct{} // has an element if an assignment is pending

	// Keeper.mu protects the fields below.
	buckets map[BucketID]*client
	former  *Stream // the broken stream of the same host; nil if there is none, or several
	closed  bool
	pushed  time.Duration           // when a changed share was last sent without a report
	pending map[BucketID]Assignment // latest assignment of each bucket, until take
}

// Open begins a stream of a host. If exactly one stream of the host is broken, the new stream takes over its buckets.
func (k *Keeper) Open(host, domain string) *Stream {
	s := &Stream{
		keeper: k, host: host, domain: domain, full: make(chan struct{}, 1), buckets: map[BucketID]*client{},
		pushed: -pushEvery, pending: map[BucketID]Assignment{},
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	found := 0
	for old := range k.streams {
		if old.closed && old.host == host && old.domain == domain {
			s.former = old
			found++
		}
	}
	if found > 1 { // each of these streams may be the same Envoy's
		s.former = nil
	}
	k.streams[s] = struct{}{}
	return s
}

// put queues an assignment for sending. If the client does not read, put drops further abandonments, because the Envoy
// will report those buckets again. The caller must hold Keeper.mu for a whole step, to send its assignments together.
func (s *Stream) put(a Assignment) {
	if _, ok := s.pending[a.ID]; !ok && a.Strategy == Abandon && len(s.pending) >= 2*maxBuckets {
		return
	}
	s.pending[a.ID] = a
	reload.Hint(s.full)
}

// take returns the assignments to send.
func (s *Stream) take() []Assignment {
	s.keeper.mu.Lock()
	defer s.keeper.mu.Unlock()
	all := slices.Collect(maps.Values(s.pending))
	clear(s.pending)
	return all
}

// Report records the usages of one message. It does not wait for the store or the Envoy, and does not keep usages.
func (s *Stream) Report(usages []Usage) {
	k := s.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	if s.closed || k.stopped {
		return
	}
	k.stats.Reports++
	now := k.now()
	var fresh []*Usage
	for i := range usages {
		k.stats.Allowed, k.stats.Denied = k.stats.Allowed+usages[i].Allowed, k.stats.Denied+usages[i].Denied
		k.o.Reported(usages[i].Allowed, usages[i].Denied)
		if c := s.buckets[usages[i].ID]; c != nil {
			c.report(&usages[i], now)
		} else {
			fresh = append(fresh, &usages[i])
		}
	}
	slices.SortStableFunc(fresh, func(a, b *Usage) int { return cmp.Compare(b.count(), a.count()) })
	for _, u := range fresh {
		switch c := s.begin(u, now); {
		case c != nil:
			c.report(u, now)
		case u.Elapsed > 0: // Envoy then reports the bucket again at once, so it is admitted when there is room
			k.stats.Sent[Abandon]++
			s.put(Assignment{ID: u.ID, Strategy: Abandon})
		}
	}
	if len(fresh) > 0 {
		reload.Hint(k.wake)
	}
}

// count returns the number of reported requests.
func (u *Usage) count() float64 { return float64(u.Allowed) + float64(u.Denied) }

// begin adds an unknown bucket. It returns nil if there is no room or the bucket is not needed. If the stream is full,
// a bucket with fewer requests makes room, because invented buckets must not displace real ones.
func (s *Stream) begin(u *Usage, now time.Duration) *client {
	k := s.keeper
	if s.buckets[u.ID] != nil { // the bucket occurs twice in one message
		return s.buckets[u.ID]
	}
	c := &client{stream: s, id: u.ID, at: now, isNew: u.Elapsed <= 0, isResumed: u.Elapsed > 0}
	if u.Elapsed > 0 {
		c.want = u.count() / max(u.Elapsed, minMeasured).Seconds()
		if of := s.former; of != nil && of.buckets[u.ID] != nil { // the same Envoy's bucket in its broken stream
			c = of.buckets[u.ID]
			of.remove(c)
			c.stream = s
		} else if u.count() == 0 {
			return nil
		}
	}
	t := k.o.Resolve(s.domain, u.ID)
	if t.Refused != "" {
		k.refuse(s.domain, t.Refused)
		k.leave(c)
		return nil
	}
	if len(s.buckets) >= maxBuckets && u.Elapsed > 0 {
		least := (*client)(nil)
		for _, c := range s.buckets {
			if least == nil || c.lastCount < least.lastCount {
				least = c
			}
		}
		if least.lastCount < u.count() {
			k.abandon(least, now)
		}
	}
	if len(s.buckets) < maxBuckets && k.bucketsOf.take(s.host) {
		k.retarget(c, &t, now)
		s.buckets[u.ID] = c
		return c
	}
	k.leave(c)
	k.stats.Dropped++
	k.dropped.Log(context.Background(), k.o.Logger, slog.LevelWarn,
		"too many quota buckets, so further buckets get no assignment; let bucket_id_builder build fewer",
		slog.String("host", s.host), slog.String("domain", s.domain),
		slog.Int("of_stream", len(s.buckets)), slog.Int("of_all", k.bucketsOf.used))
	return nil
}

// refuse counts a bucket that gets no assignment, and logs it without its values, which come from requests.
func (k *Keeper) refuse(domain, why string) {
	k.stats.Refused++
	k.refused.Log(context.Background(), k.o.Logger, slog.LevelWarn,
		"a bucket gets no assignment, because of its limit or its entries",
		slog.String("domain", domain), slog.String("reason", why))
}

// remove removes a client, and also the stream if it is closed and has no other client.
func (s *Stream) remove(c *client) {
	s.keeper.bucketsOf.leave(s.host)
	if delete(s.buckets, c.id); s.closed && len(s.buckets) == 0 {
		delete(s.keeper.streams, s)
	}
}

// Close ends a stream. Its buckets are charged until their assignments expire, because the Envoy may still be running.
// Further calls have no effect.
func (s *Stream) Close() {
	k := s.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	if s.closed {
		return
	}
	s.closed, s.former = true, nil
	clear(s.pending)
	now := k.now()
	for _, c := range s.buckets {
		if c.book != nil {
			c.book.account(now)
		}
		if now < c.wasUntil { // the last message may be lost
			c.rate = max(c.rate, c.was)
		}
		if c.rate == 0 || c.book == nil {
			k.drop(c)
		}
	}
	if len(s.buckets) == 0 {
		delete(k.streams, s)
	}
}

// abandon drops a bucket, also in the Envoy. Its unused hits are refunded to their windows.
func (k *Keeper) abandon(c *client, now time.Duration) {
	if b := c.book; b != nil {
		b.account(now)
		b.refund(c, c.could, now-c.reported)
	}
	k.stats.Sent[Abandon]++
	c.stream.put(Assignment{ID: c.id, Strategy: Abandon})
	k.drop(c)
}

// drop drops a bucket.
func (k *Keeper) drop(c *client) {
	k.leave(c)
	c.stream.remove(c)
}
