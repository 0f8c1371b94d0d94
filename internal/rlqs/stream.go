package rlqs

import (
	"cmp"
	"log/slog"
	"slices"
	"time"
)

// Stream is what one Envoy reports of one domain, and where its assignments go.
type Stream struct {
	keeper             *Keeper
	host, domain, node string
	to                 Sender

	// The keeper's lock guards these.
	buckets map[BucketID]*client
	former  *Stream // the broken stream of the same node; nil if there is none, or several
	closed  bool
	pushed  time.Duration // when a changed share was last sent without a report before
	outbox  []Assignment  // of the step in progress
}

// Open begins a stream from a host. node is the name that the Envoy gives itself, or empty: by it an Envoy whose stream
// broke goes on in the new one. to gets the assignments.
func (k *Keeper) Open(host, domain, node string, to Sender) *Stream {
	s := &Stream{
		keeper: k, host: host, domain: domain, node: node, to: to, buckets: map[BucketID]*client{}, pushed: -pushEvery,
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	found := 0
	for old := range k.streams {
		if node != "" && old.node == node && old.domain == domain && old.closed {
			s.former = old
			found++
		}
	}
	if found > 1 { // Envoys that share a name
		s.former = nil
	}
	k.streams[s] = struct{}{}
	return s
}

// Report takes the usages of one message. It never waits for the store or for the Envoy, and keeps no reference to
// usages.
func (s *Stream) Report(usages []Usage) {
	k := s.keeper
	k.mu.Lock()
	if s.closed || k.stopped {
		k.mu.Unlock()
		return
	}
	now := k.now()
	var fresh []*Usage
	for i := range usages {
		if c := s.buckets[usages[i].ID]; c != nil {
			c.report(&usages[i], now)
		} else {
			fresh = append(fresh, &usages[i])
		}
	}
	var abandoned []Assignment
	slices.SortStableFunc(fresh, func(a, b *Usage) int { return cmp.Compare(b.count(), a.count()) })
	for _, u := range fresh {
		switch c := s.begin(u, now); {
		case c != nil:
			c.report(u, now)
		case u.Elapsed > 0: // Envoy reports a new one at once, so that it gets a place when there is one
			k.stats.Abandoned++
			abandoned = append(abandoned, Assignment{ID: u.ID, Strategy: Abandon})
		}
	}
	if len(k.urgent) > 0 {
		k.wakeUp()
	}
	k.mu.Unlock()
	s.to.Send(abandoned)
}

// count returns how many requests were reported.
func (u *Usage) count() float64 { return float64(u.Allowed) + float64(u.Denied) }

// begin adds a bucket that is not known. It returns nil if there is no room for it, or no use. If the stream is full,
// a bucket with fewer requests makes room: else invented buckets would keep real ones out.
func (s *Stream) begin(u *Usage, now time.Duration) *client {
	k := s.keeper
	if s.buckets[u.ID] != nil { // twice in one message
		return s.buckets[u.ID]
	}
	if u.Elapsed > 0 {
		if c := s.takeOver(u); c != nil {
			return c
		}
		if u.count() == 0 {
			return nil
		}
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
	if len(s.buckets) >= maxBuckets || !k.buckets.take(s.host) {
		k.stats.Dropped++
		if skipped, ok := k.dropped.Allow(time.Now()); ok {
			k.o.Logger.Warn("too many quota buckets, further ones get no assignment: have bucket_id_builder make fewer",
				slog.String("host", s.host), slog.String("domain", s.domain), slog.String("node", s.node),
				slog.Int("of_stream", len(s.buckets)), slog.Int("of_all", k.buckets.used), slog.Uint64("skipped", skipped))
		}
		return nil
	}
	c := &client{stream: s, id: u.ID, at: now, isNew: u.Elapsed <= 0, isResumed: u.Elapsed > 0}
	s.add(c)
	return c
}

// takeOver moves a bucket of the same Envoy's broken stream to this one.
func (s *Stream) takeOver(u *Usage) *client {
	if s.former == nil {
		return nil
	}
	c := s.former.buckets[u.ID]
	if c == nil || !s.keeper.buckets.take(s.host) {
		return nil
	}
	s.former.remove(c)
	s.add(c)
	return c
}

// add adds a client, whose limits are found in the next step: rules may have changed while it had no stream.
func (s *Stream) add(c *client) {
	c.stream, c.isStale = s, true
	s.buckets[c.id] = c
	s.keeper.urgent = append(s.keeper.urgent, c)
}

// remove removes a client, and forgets a closed stream without clients.
func (s *Stream) remove(c *client) {
	s.keeper.buckets.leave(s.host)
	if delete(s.buckets, c.id); s.closed && len(s.buckets) == 0 {
		delete(s.keeper.streams, s)
	}
}

// Close ends a stream. Since the Envoy may live on, its buckets are charged until their assignments end. Only the first
// call has an effect.
func (s *Stream) Close() {
	k := s.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	if s.closed {
		return
	}
	s.closed, s.outbox, s.former = true, nil, nil
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

// abandon makes the Envoy forget a bucket, and forgets it. What it did not use returns to its windows.
func (k *Keeper) abandon(c *client, now time.Duration) {
	if b := c.book; b != nil {
		b.account(now)
		b.refund(c, c.could, now-c.reported)
	}
	k.stats.Abandoned++
	c.stream.outbox = append(c.stream.outbox, Assignment{ID: c.id, Strategy: Abandon})
	k.drop(c)
}

// drop forgets a bucket.
func (k *Keeper) drop(c *client) {
	c.isGone = true
	k.leave(c)
	c.stream.remove(c)
}
