package guard

import (
	"cmp"
	"context"
	"errors"
	"hash/maphash"
	"math"
	"sync"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Bounds of Leases.
const (
	// LeaseShare is how much of a limit's capacity may be on lease in one process: one part of this many. Limits with a
	// smaller capacity are strict.
	LeaseShare = 10
	// MaxLeases is about the most keys with permits on lease. Others are strict.
	MaxLeases = 1 << 16

	// A process has at most one part of this many of what was left when it took permits.
	leavePart = 4

	leaseShards = 64
	leasesShard = MaxLeases / leaseShards
	// A key gets permits ahead from the request on that is the hot-th in one lease, until it has fewer than warm.
	hot, warm = 4, 2
	// releaseTimeout bounds Close.
	releaseTimeout = time.Second
)

// Leases is a limiter.Store that decides requests of hot keys without asking the store behind it, where the hit's Route
// allows it, by a LeaseTime. A key that is asked for often acquires permits in advance, about as many as it needs for
// that time: the store charges them at once, requests spend them here, and what is left is released.
//
// Permits are charged before they are spent, so no more pass than the store has charged. But the store counts a hit
// when its permit was charged, which is up to a LeaseTime before it passes: in any span of time, up to as many hits
// more than the algorithm allows can pass as permits were on lease when it began. That is at most Capacity/LeaseShare
// for each process.
//
// Only hits with Mode Enforce and N > 0 are decided here. All others, and all of keys that are not hot, go to the
// store as they are. Answers of Leases have the Remaining and ResetAfter of the store's last answer, not those of now.
type Leases struct {
	store  limiter.Store
	start  time.Time
	seed   maphash.Seed
	shards [leaseShards]leaseShard
	agenda agenda

	ctx    context.Context    // of calls that outlive a request
	cancel context.CancelFunc // ends them
	calls  sync.WaitGroup     // and renewals
	end    func() error       // close, once
	o      LeasesOptions
}

var _ limiter.Store = (*Leases)(nil)

// leaseShard holds the leases of keys whose hashes end alike.
type leaseShard struct {
	mu     sync.Mutex
	leases map[string]*lease
	heat   []heat
	closed bool
	stats  LeaseStats

	_ [64]byte // keeps the next shard's lock off this one's cache line
}

// LeaseStats says what Leases do.
type LeaseStats struct {
	Keys    int    // that are hot
	Permits int64  // charged, and neither spent nor released
	Answers uint64 // requests that were decided without the store
	Taken   uint64 // permits acquired in advance
	// Returned and Lost are permits that were not spent. Lost ones could not be released, since the store did not
	// answer or their window was about to end.
	Returned, Lost uint64
}

// NewLeases starts a store before another; Close ends it, and not the other.
func NewLeases(o LeasesOptions) *Leases {
	l := &Leases{o: o, store: o.Store, start: time.Now(), seed: maphash.MakeSeed()}
	l.agenda.due = make(map[time.Duration][]*lease)
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.end = sync.OnceValue(l.close)
	for i := range l.shards {
		l.shards[i].leases = make(map[string]*lease)
		l.shards[i].heat = make([]heat, leasesShard/len(heat{}))
	}
	return l
}

// now is the time since the start.
func (l *Leases) now() time.Duration { return time.Since(l.start) }

// Stats are summed over all keys.
func (l *Leases) Stats() (sum LeaseStats) {
	for i := range l.shards {
		sh := &l.shards[i]
		sh.mu.Lock()
		sum.Keys += len(sh.leases)
		sum.Permits += sh.stats.Permits
		sum.Answers += sh.stats.Answers
		sum.Taken += sh.stats.Taken
		sum.Returned += sh.stats.Returned
		sum.Lost += sh.stats.Lost
		sh.mu.Unlock()
	}
	return sum
}

// leasable says whether the hit may be decided by a lease.
func leasable(h *limiter.Hit) bool {
	return leaseTime(h) > 0 && h.Mode == limiter.Enforce && h.N > 0 && share(h.Policy) > 0
}

// share is the most permits of the limit that this process has on lease.
func share(p *limiter.Policy) int64 { return p.Capacity() / LeaseShare }

// Take implements limiter.Store. A request whose hits are all covered by permits is decided here. Otherwise the store
// decides what is not covered, in one call, which also takes what its hot keys will need next.
func (l *Leases) Take(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	if len(hits) == 1 {
		if !leasable(&hits[0]) {
			return l.store.Take(ctx, hits, out)
		}
		return l.takeOne(ctx, hits, out)
	}
	if mayLease(hits) {
		return l.takeSeveral(ctx, hits, out)
	}
	return l.store.Take(ctx, hits, out)
}

// TakeAtOnce is Take for a request whose hits are all covered by permits. If it returns false, nothing is spent, and
// out means nothing.
func (l *Leases) TakeAtOnce(hits []limiter.Hit, out []limiter.Decision) bool {
	if limiter.ByItself(hits) {
		return false
	}
	var room [inline]cover
	covers := room[:0]
	now := l.now()
	for i := range hits {
		h := &hits[i]
		if !leasable(h) || !l.reserve(h, i, &out[i], &covers) {
			for j := range covers {
				l.restore(&covers[j], now)
			}
			return false
		}
	}
	for i := range covers {
		covers[i].commit()
	}
	for i := range hits {
		l.count(&hits[i], i == 0)
	}
	return len(hits) > 0
}

// reserve covers a hit by permits of its key, if there are enough.
func (l *Leases) reserve(h *limiter.Hit, i int, out *limiter.Decision, covers *[]cover) bool {
	sh, e := l.lock(h.Key)
	defer sh.mu.Unlock()
	if e == nil || sh.closed || !e.spend(h, l.now(), out) {
		return false
	}
	e.reserved += h.N
	*covers = append(*covers, cover{lease: e, grant: e.grant, ends: e.ends, n: h.N, hit: i})
	return true
}

// count counts a hit that was covered as one of its key's, and with answered a request that was decided without the
// store. Hits that the store decides are counted by find.
func (l *Leases) count(h *limiter.Hit, answered bool) {
	now := l.now()
	sh, e := l.lock(h.Key)
	defer sh.mu.Unlock()
	if e != nil {
		e.rate.add(now, leaseTime(h), 1, h.N)
	}
	if answered {
		sh.stats.Answers++
	}
}

// TakeLater implements limiter.Later, for requests that no lease may decide.
func (l *Leases) TakeLater(hits []limiter.Hit, out []limiter.Decision, w limiter.Waiter) bool {
	return !mayLease(hits) && takeLater(l.store, hits, out, w)
}

// Send implements limiter.Later.
func (l *Leases) Send() { send(l.store) }

// mayLease reports whether a hit of the request may be decided by a lease. What is charged by itself is charged there
// and then, unless it is alone.
func mayLease(hits []limiter.Hit) bool {
	if len(hits) > 1 && limiter.ByItself(hits) {
		return false
	}
	for i := range hits {
		if leasable(&hits[i]) {
			return true
		}
	}
	return false
}

// takeOne is Take of one hit. It may wait for permits that are on their way.
func (l *Leases) takeOne(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	h, now := &hits[0], l.now()
	sh, sum := l.shard(h.Key)
	sh.mu.Lock()
	e := l.find(sh, sum, h, now)
	if e == nil {
		sh.mu.Unlock()
		return l.store.Take(ctx, hits, out)
	}
	if e.answer(h, now, &out[0]) {
		sh.mu.Unlock()
		return nil
	}
	if e.call == nil {
		e.follow(h)
		x := l.begin(nil, e, now)
		sh.mu.Unlock()
		return l.ask(ctx, hits, out, nil, x)
	}
	x := e.join(h)
	sh.mu.Unlock()
	if x == nil {
		return l.ask(ctx, hits, out, nil, nil)
	}
	return l.takeJoined(ctx, e, x, now, hits, out)
}

// takeJoined decides a hit by the permits that x brings. If x fails, or brings too few, the store decides the hit in
// what is left of the request's time: other keys may be to blame for x.
func (l *Leases) takeJoined(
	ctx context.Context, e *lease, x *exchange, start time.Duration, hits []limiter.Hit, out []limiter.Decision,
) error {
	select {
	case <-x.done:
	case <-ctx.Done():
		return unavailable(ctx.Err())
	}
	now := l.now()
	if x.err == nil {
		e.shard.mu.Lock()
		spent := e.answer(&hits[0], now, &out[0])
		e.shard.mu.Unlock()
		if spent {
			return nil
		}
	}
	if l.o.Timeout != nil {
		left := start + l.o.Timeout(hits[0].StoreName()) - now
		if left <= 0 {
			return cmp.Or(x.err, unavailable(context.DeadlineExceeded))
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, left)
		defer cancel()
	}
	return l.ask(ctx, hits, out, nil, nil)
}

// inline is how many covered hits need no memory of their own.
const inline = 8

// takeSeveral is Take of a request some of whose hits may be decided by leases.
func (l *Leases) takeSeveral(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	var room [inline]cover
	covers := room[:0]
	var x *exchange
	var byShard exchanges // one for each shard, instead of x, if the hits are decided by several
	looked := false       // for shards
	now := l.now()
	for i := range hits {
		h := &hits[i]
		if !leasable(h) {
			continue
		}
		sh, sum := l.shard(h.Key)
		sh.mu.Lock()
		e := l.find(sh, sum, h, now)
		switch {
		case e == nil:
		case e.spend(h, now, &out[i]):
			e.reserved += h.N
			covers = append(covers, cover{lease: e, grant: e.grant, ends: e.ends, n: h.N, hit: i})
		case e.call == nil:
			if !looked {
				byShard, looked = l.exchangesOf(hits), true
			}
			e.follow(h)
			if byShard == nil {
				x = l.begin(x, e, now)
			} else {
				at := l.o.Shard(h)
				byShard[at] = l.begin(byShard[at], e, now)
			}
		}
		sh.mu.Unlock()
	}
	byShard.send()
	if len(covers) < len(hits) {
		return l.ask(ctx, hits, out, covers, x)
	}
	for i := range covers {
		covers[i].commit()
	}
	sh := covers[0].lease.shard
	sh.mu.Lock()
	sh.stats.Answers++
	sh.mu.Unlock()
	return nil
}

// ask lets the store decide the hits that are not covered, and does x's renewals in the same call. x is nil if there
// are none. A request that is denied leaves what covered it to others.
func (l *Leases) ask(ctx context.Context, hits []limiter.Hit, out []limiter.Decision, covers []cover,
	x *exchange,
) error {
	sent := l.now()
	if x == nil && len(covers) == 0 {
		err := l.store.Take(ctx, hits, out)
		if err == nil {
			l.learn(hits, out, sent)
		}
		return err
	}
	if x == nil {
		x = newExchange(l)
	}
	x.assemble(hits, covers)
	if len(x.renewals) == 0 {
		x.run(ctx)
	} else {
		go x.run(l.ctx) //nolint:contextcheck // what is acquired in advance is for others, too
		select {
		case <-x.done:
		case <-ctx.Done():
			for i := range covers {
				covers[i].commit() // the store may have charged the rest
			}
			return unavailable(ctx.Err())
		}
	}
	own, decided := x.own()
	spent := limiter.Admitted(own, decided)
	if x.err != nil { // the store may have charged the rest, if it was asked
		spent = !errors.Is(x.err, ErrNotAsked)
	}
	now := l.now()
	for i := range covers {
		if spent {
			covers[i].commit()
		} else {
			l.restore(&covers[i], now)
		}
	}
	if x.err != nil {
		return x.err
	}
	from := 0
	for i := range hits {
		if !isCovered(covers, i) {
			out[i] = decided[from]
			from++
		}
	}
	l.learn(hits, out, sent)
	return nil
}

// learn keeps what the store said of hot keys.
func (l *Leases) learn(hits []limiter.Hit, out []limiter.Decision, sent time.Duration) {
	for i := range hits {
		if !leasable(&hits[i]) {
			continue
		}
		sh, e := l.lock(hits[i].Key)
		if e != nil && e.lastAt < sent {
			e.learn(&out[i], sent)
		}
		sh.mu.Unlock()
	}
}

func (l *Leases) shard(key string) (sh *leaseShard, sum uint64) {
	sum = maphash.String(l.seed, key)
	return &l.shards[sum%leaseShards], sum
}

// lock locks the shard of a key, and returns the key's lease, nil if it is not hot.
func (l *Leases) lock(key string) (*leaseShard, *lease) {
	sh, _ := l.shard(key)
	sh.mu.Lock()
	return sh, sh.leases[key]
}

// find is the key's lease, nil if it is not hot. The hit is counted. The shard is locked.
func (l *Leases) find(sh *leaseShard, sum uint64, h *limiter.Hit, now time.Duration) *lease {
	if sh.closed {
		return nil
	}
	e, span := sh.leases[h.Key], leaseTime(h)
	if e == nil {
		count := sh.heat[sum/leaseShards%uint64(len(sh.heat))].add(sum, now/span)
		if count < hot || len(sh.leases) >= leasesShard {
			return nil
		}
		e = &lease{hit: limiter.Hit{Key: h.Key}, shard: sh, last: limiter.Decision{Remaining: math.MaxInt64}, lastAt: -1}
		e.follow(h)
		e.rate.add(now, span, int64(count-1), h.N*int64(count-1))
		sh.leases[h.Key] = e
		l.lookAgain(e, (now + span).Truncate(time.Millisecond))
	}
	e.rate.add(now, span, 1, h.N)
	return e
}

// heat counts the requests of a few keys that are not hot, those whose hashes lead here.
type heat [4]struct{ tag, period, count uint32 }

// add counts a request in a period, and returns how many of its key there were. A key that is new takes the place of
// the one that had the fewest requests.
func (s *heat) add(sum uint64, period time.Duration) uint32 {
	tag, now := uint32(sum>>32), uint32(period) //nolint:gosec // both may wrap
	victim, fewest := &s[0], uint32(math.MaxUint32)
	for i := range s {
		slot := &s[i]
		if slot.period != now {
			slot.count = 0
		}
		if slot.tag == tag {
			victim = slot
			break
		}
		if slot.count < fewest {
			victim, fewest = slot, slot.count
		}
	}
	if victim.tag != tag {
		victim.tag, victim.count = tag, 0
	}
	victim.period = now
	victim.count++
	return victim.count
}

// Close releases what is on lease, and ends the work behind requests. From then on the store decides all. Only the
// first call does something.
func (l *Leases) Close() error { return l.end() }

func (l *Leases) close() error {
	ctx, cancel := context.WithTimeout(l.ctx, releaseTimeout)
	defer cancel()
	for i := range l.shards {
		l.shards[i].mu.Lock()
		l.shards[i].closed = true
		l.shards[i].mu.Unlock()
	}
	l.agenda.close()
	defer context.AfterFunc(ctx, l.cancel)()
	l.calls.Wait()
	err := l.releaseAll(ctx)
	l.calls.Wait() // for keys that are exchanged again, each by itself
	l.cancel()
	return err
}
