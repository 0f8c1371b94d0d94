package limiter_test

import (
	"math/big"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// waiting is an oracle of requests that wait.
type waiting interface {
	oracle
	// goes is when a cost of n >= 1 that is admitted at now goes on, in microseconds.
	goes(now, n int64) *big.Rat
	// oneByOne says whether k hits of cost 1 would all be admitted at now, one after the other.
	oneByOne(now, k int64) bool
}

// starting is an oracle of buckets that fill from their first hit on.
type starting interface {
	// begun says whether at now there was a first hit.
	begun(now int64) bool
}

func rat(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }

func times(r *big.Rat, n int64) *big.Rat { return new(big.Rat).Mul(r, rat(n)) }

func later(a, b *big.Rat) *big.Rat {
	if a.Cmp(b) < 0 {
		a = b
	}
	return new(big.Rat).Set(a)
}

func earlier(a, b *big.Rat) *big.Rat {
	if a.Cmp(b) > 0 {
		a = b
	}
	return new(big.Rat).Set(a)
}

// ceilTo is the first multiple of tick that is not below r >= 0.
func ceilTo(r *big.Rat, tick int64) int64 {
	ticks := new(big.Rat).Quo(r, rat(tick))
	q, rest := new(big.Int).QuoRem(ticks.Num(), ticks.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		return (q.Int64() + 1) * tick
	}
	return q.Int64() * tick
}

// queueOracle knows when the last request departs. A departure longer ago than burst hits take no longer matters.
type queueOracle struct {
	burst         int64
	gap           *big.Rat // between departures, microseconds a hit
	longest, tick int64    // longest wait in microseconds, 0 for what burst hits take
	debt          int64    // microseconds
	last          *big.Rat
}

func newQueueOracle(in limiter.Params, tick int64) *queueOracle {
	o := &queueOracle{
		burst: in.Burst, gap: big.NewRat(in.Window.Microseconds(), in.Limit), longest: in.MaxWait.Microseconds(),
		tick: tick, last: new(big.Rat), debt: max(24*time.Hour, in.Window).Microseconds(),
	}
	if o.burst == 0 {
		o.burst = in.Limit
	}
	return o
}

// departed returns the last departure, or the earliest time that still matters at now.
func (o *queueOracle) departed(now int64) *big.Rat {
	ago := times(o.gap, o.burst)
	return later(o.last, ago.Sub(rat(now-now%o.tick), ago))
}

func (o *queueOracle) goes(now, n int64) *big.Rat {
	turn := times(o.gap, n)
	return later(turn.Add(turn, o.departed(now)), rat(now-now%o.tick))
}

// inTime reports whether a departure is near enough to now.
func (o *queueOracle) inTime(now int64, departure *big.Rat) bool {
	wait := new(big.Rat).Sub(departure, rat(now-now%o.tick))
	return wait.Cmp(times(o.gap, o.burst)) <= 0 && (o.longest == 0 || wait.Cmp(rat(o.longest)) <= 0)
}

func (o *queueOracle) fits(now, n int64) bool { return n <= o.burst && o.inTime(now, o.goes(now, n)) }

func (o *queueOracle) oneByOne(now, k int64) bool {
	last := o.goes(now, 1)
	return o.inTime(now, last.Add(last, times(o.gap, k-1)))
}

func (o *queueOracle) charge(now, n int64) {
	if n > 0 {
		latest := times(o.gap, o.burst)
		if o.longest != 0 {
			latest = earlier(latest, rat(o.longest))
		}
		o.last = earlier(o.goes(now, n), latest.Add(latest, rat(now-now%o.tick+o.debt)))
	}
}

func (o *queueOracle) refund(now, n int64) {
	o.last = new(big.Rat).Sub(o.departed(now), times(o.gap, n))
}

func (o *queueOracle) isNew(now int64) bool {
	until := times(o.gap, o.burst)
	return until.Add(until, o.last).Cmp(rat(now-now%o.tick)) <= 0
}

// burstyOracle is Guava's SmoothBursty, except that a counter begins with a full store.
type burstyOracle struct {
	interval      *big.Rat // microseconds a permit
	most          *big.Rat // permits in store
	longest, tick int64
	largest       int64    // cost
	stored, free  *big.Rat // permits; when the next request is free to go
	empty         bool     // it starts so
	hit           bool     // and was hit since
}

func newBurstyOracle(in limiter.Params, tick int64) *burstyOracle {
	saved := in.BurstFor.Microseconds()
	if saved == 0 {
		saved = 1_000_000
	}
	o := &burstyOracle{
		interval: big.NewRat(in.Window.Microseconds(), in.Limit), longest: in.MaxWait.Microseconds(), tick: tick,
		free: new(big.Rat),
	}
	o.most = new(big.Rat).Quo(rat(saved), o.interval)
	o.stored = o.most
	o.largest, o.empty = in.MaxCost, in.StartsEmpty
	if o.largest == 0 {
		o.largest = in.Limit * max(1, int64(time.Hour/in.Window))
	}
	return o
}

// begun reports whether a bucket that starts empty was hit, and was not full since for as long as filling takes.
func (o *burstyOracle) begun(now int64) bool {
	if !o.empty {
		return true
	}
	full := ceilTo(new(big.Rat).Add(o.free, missing(o)), o.tick)
	return o.hit && now-now%o.tick < full+ceilTo(new(big.Rat).Mul(o.most, o.interval), o.tick)
}

// missing returns the time until the store is full.
func missing(o *burstyOracle) *big.Rat {
	left := new(big.Rat).Sub(o.most, o.stored)
	return left.Mul(left, o.interval)
}

// at returns the oracle at now, with the permits that were stored while no request was waiting.
func (o *burstyOracle) at(now int64) *burstyOracle {
	next, t := *o, rat(now-now%o.tick)
	if !o.begun(now) {
		next.stored, next.free = new(big.Rat), t
		return &next
	}
	if t.Cmp(o.free) > 0 {
		idle := new(big.Rat).Sub(t, o.free)
		next.store(idle.Quo(idle, o.interval))
		next.free = t
	}
	return &next
}

// store adds permits up to the most.
func (o *burstyOracle) store(permits *big.Rat) {
	o.stored = new(big.Rat).Add(o.stored, permits)
	if o.stored.Cmp(o.most) > 0 {
		o.stored = o.most
	}
}

func (o *burstyOracle) goes(now, _ int64) *big.Rat { return o.at(now).free }

func (o *burstyOracle) fits(now, n int64) bool {
	return n <= o.largest && o.at(now).free.Cmp(rat(now-now%o.tick+o.longest)) <= 0
}

func (o *burstyOracle) charge(now, n int64) { o.owe(now, min(n, o.largest)) }

func (o *burstyOracle) owe(now, n int64) {
	if o.begun(now) && o.empty && n == 0 {
		return // one that is full stays so since when it was
	}
	*o = *o.at(now)
	o.hit = true
	fresh := rat(n)
	if o.stored.Cmp(fresh) >= 0 {
		o.stored = new(big.Rat).Sub(o.stored, fresh)
		return
	}
	fresh.Sub(fresh, o.stored)
	o.stored, o.free = new(big.Rat), new(big.Rat).Add(o.free, fresh.Mul(fresh, o.interval))
	latest := times(o.interval, o.largest)
	o.free = earlier(o.free, latest.Add(latest, rat(now-now%o.tick+o.longest)))
}

// refund takes hits off those that others are waiting for, and stores the rest.
func (o *burstyOracle) refund(now, n int64) {
	if o.begun(now) && o.empty && o.at(now).stored.Cmp(o.most) == 0 {
		return
	}
	*o = *o.at(now)
	o.hit = true
	t := rat(now - now%o.tick)
	free := new(big.Rat).Sub(o.free, times(o.interval, n))
	if over := new(big.Rat).Sub(t, free); over.Sign() > 0 {
		o.store(over.Quo(over, o.interval))
		free = t
	}
	o.free = free
}

func (o *burstyOracle) oneByOne(now, k int64) bool {
	before := *o
	before.owe(now, k-1)
	return before.fits(now, 1)
}

func (o *burstyOracle) isNew(now int64) bool { return o.at(now).stored.Cmp(o.most) == 0 }

// leaseOracle counts leases; what is refunded is the oldest.
type leaseOracle struct{ logOracle }

func (o *leaseOracle) refund(now, n int64) {
	alive := o.alive(now)
	for i := range o.events {
		if e := &o.events[i]; alive(*e) {
			back := min(n, e.n)
			e.n -= back
			n -= back
		}
	}
}

// emptyOracle is a token bucket that starts empty. It fills from its first hit on, admitted or not, and starts again
// after it was full for as long as filling takes.
type emptyOracle struct {
	bucketOracle
	hit bool
}

func (o *emptyOracle) begun(now int64) bool {
	missing := new(big.Rat).Sub(o.capacity, o.tokens)
	full := o.last + ceilTo(missing.Quo(missing, o.rate), o.tick)
	return o.hit && now-now%o.tick < full+ceilTo(new(big.Rat).Quo(o.capacity, o.rate), o.tick)
}

func (o *emptyOracle) at(now int64) *big.Rat {
	if !o.begun(now) {
		return new(big.Rat)
	}
	return o.bucketOracle.at(now)
}

func (o *emptyOracle) fits(now, n int64) bool { return o.at(now).Cmp(rat(n)) >= 0 }

func (o *emptyOracle) charge(now, n int64) {
	before := o.at(now)
	after := later(new(big.Rat).Sub(before, rat(n)), new(big.Rat).Neg(o.debt))
	if after.Cmp(o.capacity) > 0 {
		after.Set(o.capacity)
	}
	if o.begun(now) && after.Cmp(before) == 0 {
		return // a bucket that is full stays so since when it was
	}
	o.hit, o.tokens, o.last = true, after, now-now%o.tick
}

func (o *emptyOracle) refund(now, n int64)  { o.charge(now, -n) }
func (o *emptyOracle) isNew(now int64) bool { return o.at(now).Cmp(o.capacity) == 0 }

// batchOracle is a token bucket that gets its tokens a batch at a time.
type batchOracle struct {
	capacity, batch, window int64
	startsEmpty, hit        bool
	tokens                  int64
	since                   int64 // when the batch that is under way began; of a full bucket, since when it is full
}

func newBatchOracle(in limiter.Params) *batchOracle {
	o := &batchOracle{
		capacity: in.Burst, batch: in.Limit, window: in.Window.Microseconds(),
		startsEmpty: in.StartsEmpty,
	}
	if o.capacity == 0 {
		o.capacity = in.Limit
	}
	o.tokens, o.hit = o.capacity, !o.startsEmpty
	return o
}

// at returns the oracle at now, after all batches up to now.
func (o *batchOracle) at(now int64) batchOracle {
	next, filling := *o, int64(0)
	for has := int64(0); has < o.capacity; has += o.batch {
		filling += o.window
	}
	for next.hit && next.tokens < o.capacity && next.since+o.window <= now {
		next.tokens = min(o.capacity, next.tokens+o.batch)
		next.since += o.window
	}
	if full := next.tokens == o.capacity; o.startsEmpty && (!o.hit || full && now-next.since >= filling) {
		next.hit, next.tokens = false, 0
	}
	return next
}

func (o *batchOracle) fits(now, n int64) bool { return o.at(now).tokens >= n }
func (o *batchOracle) begun(now int64) bool   { return o.at(now).hit }

func (o *batchOracle) charge(now, n int64) {
	next := o.at(now)
	before := next.tokens
	owed := ceilTo(rat((24*time.Hour).Microseconds()), o.window) / o.window * o.batch
	next.tokens = max(-owed, min(o.capacity, before-n))
	if next.hit && next.tokens == before {
		return
	}
	if !next.hit || before == o.capacity || next.tokens == o.capacity {
		next.since = now
	}
	next.hit = true
	*o = next
}

func (o *batchOracle) refund(now, n int64)  { o.charge(now, -n) }
func (o *batchOracle) isNew(now int64) bool { return o.at(now).tokens == o.capacity }
