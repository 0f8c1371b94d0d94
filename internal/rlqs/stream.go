package rlqs

import (
	"log/slog"
	"time"
)

// Stream is what one Envoy reports of one domain, and where its assignments go.
type Stream struct {
	keeper             *Keeper
	host, domain, node string
	to                 Sender

	// The keeper's lock guards these.
	buckets map[BucketID]*client
	closed  bool
	pushed  time.Duration // when a share that moved was sent without a report before
	outbox  []Assignment  // of the step that is being done
}

// Open begins a stream from a host. node names the Envoy, if it says who it is: what was assigned to a stream of the
// same node that broke goes on in this one. Envoys that do not say so count as one node. to gets the assignments.
func (k *Keeper) Open(host, domain, node string, to Sender) *Stream {
	s := &Stream{
		keeper: k, host: host, domain: domain, node: node, to: to,
		buckets: make(map[BucketID]*client), pushed: -pushEvery,
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.streams[s] = struct{}{}
	return s
}

// Report takes the usages of one message, in their order. It never waits for the store or for the Envoy, and keeps no
// reference to usages.
func (s *Stream) Report(usages []Usage) {
	k := s.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	if s.closed || k.stopped {
		return
	}
	now := k.now()
	for i := range usages {
		u := &usages[i]
		c := s.buckets[u.ID]
		if c == nil {
			if c = s.begin(u); c == nil {
				continue
			}
		}
		k.stats.Over += c.report(u, now)
	}
	if len(k.urgent) > 0 {
		k.wakeUp()
	}
}

// begin has the stream have a bucket, unless it has too many.
func (s *Stream) begin(u *Usage) *client {
	k := s.keeper
	if c := s.takeOver(u); c != nil {
		s.add(c)
		return c
	}
	switch {
	case k.hosts[s.host] >= k.most-k.buckets:
		s.refuse("its host has as many as are free for others: run more replicas, or have bucket_id_builder make fewer")
		return nil
	case len(s.buckets) >= k.o.MaxBuckets:
		s.refuse("its Envoy has --quota-max-buckets: raise it, or have bucket_id_builder make fewer")
		return nil
	}
	c := &client{id: u.ID, at: k.now()}
	s.add(c)
	return c
}

// refuse counts a usage of a bucket that is one too many, and logs some.
func (s *Stream) refuse(why string) {
	k := s.keeper
	k.stats.Dropped++
	if skipped, ok := k.dropped.Allow(time.Now()); ok {
		k.o.Logger.Warn("too many quota buckets, further ones get no assignment", slog.String("reason", why),
			slog.String("host", s.host), slog.String("domain", s.domain), slog.String("node", s.node),
			slog.Int("of_stream", len(s.buckets)), slog.Int("of_host", k.hosts[s.host]), slog.Int("of_all", k.buckets),
			slog.Uint64("skipped", skipped))
	}
}

// count counts buckets that the stream got or lost.
func (s *Stream) count(n int) {
	k := s.keeper
	k.buckets += n
	if k.hosts[s.host] += n; k.hosts[s.host] == 0 {
		delete(k.hosts, s.host)
	}
}

// takeOver returns what a broken stream had of a bucket that goes on in this one, and takes it from there. A bucket
// that is new in its Envoy was in no other stream.
func (s *Stream) takeOver(u *Usage) *client {
	k := s.keeper
	if s.node == "" && u.Elapsed <= 0 {
		return nil
	}
	p := k.pools[poolKey{s.domain, s.node, u.ID}]
	if p == nil {
		return nil
	}
	c := p.goOn(k, float64(u.Allowed), k.now()-u.Elapsed)
	old := c.stream
	old.count(-1)
	delete(old.buckets, u.ID)
	old.forgetIfEnded()
	return c
}

// add has the stream have a client, whose target is found in the next step: rules may have changed while it had no
// stream.
func (s *Stream) add(c *client) {
	c.stream, c.isStale, c.isUrgent = s, true, true
	s.buckets[c.id] = c
	s.count(1)
	s.keeper.urgent = append(s.keeper.urgent, c)
}

// Close ends a stream. endedByEnvoy says that nothing that was assigned to it is in force any more; else it is charged
// for until the last assignment ends. Only the first call does something.
func (s *Stream) Close(endedByEnvoy bool) {
	k := s.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	if s.closed {
		return
	}
	s.closed, s.outbox = true, nil
	now := k.now()
	for _, c := range s.buckets {
		c.account(now)
		if now < c.toldAt { // the last message may be lost
			c.rate = max(c.rate, c.before)
		}
		if endedByEnvoy || c.rate == 0 {
			if c.group != nil {
				c.refund(c.float+c.burst, now-c.reported)
			}
			k.drop(c)
			continue
		}
		k.enterPool(c)
	}
	s.forgetIfEnded()
}

// forgetIfEnded forgets a stream that is closed, and of which nothing can be in force.
func (s *Stream) forgetIfEnded() {
	if s.closed && len(s.buckets) == 0 {
		delete(s.keeper.streams, s)
	}
}

// drop forgets a bucket.
func (k *Keeper) drop(c *client) {
	c.isGone = true
	k.leaveShadows(c)
	c.stream.count(-1)
	k.leavePool(c)
	k.leave(c)
	delete(c.stream.buckets, c.id)
	c.stream.forgetIfEnded()
}
