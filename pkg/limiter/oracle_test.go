package limiter_test

import (
	"math/big"
	"slices"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// oracle is an algorithm by its definition: it remembers every hit, and its arithmetic is exact. It is slow and decides
// only whether a cost fits; tests check the other numbers of a step by further calls of fits.
type oracle interface {
	// fits says whether a cost of n >= 1 would be admitted at now.
	fits(now, n int64) bool
	// charge takes n >= 0 hits at now, whether they fit or not: 0 for a hit that was denied and pays nothing.
	charge(now, n int64)
	// refund returns n hits at now.
	refund(now, n int64)
	// isNew reports whether no hit matters any more at now.
	isNew(now int64) bool
}

// windowed is an oracle whose windows end, whether or not anything was counted in them.
type windowed interface {
	// ends returns when the window of now ends, in microseconds since the Unix epoch.
	ends(now int64) int64
}

// newOracle is the oracle of a policy. Clocks coarser than a microsecond are part of the definition of a policy
// whose numbers would not fit otherwise.
func newOracle(in limiter.Params, p *limiter.Policy) oracle {
	window := in.Window.Microseconds()
	switch in.Algorithm {
	case limiter.FixedWindow:
		if in.Align == limiter.AlignCalendar {
			return &calendarOracle{in: in}
		}
		return &fixedOracle{limit: in.Limit, window: window, first: in.Align == limiter.AlignFirstHit, start: -1}
	case limiter.Funnel:
		return &funnelOracle{
			capacity: p.Capacity(), rate: big.NewRat(in.Limit, window), tick: p.Core().Args()[1],
			level: new(big.Rat), debt: debt(in),
		}
	case limiter.TokenBucket:
		if in.RefillsAtOnce {
			return newBatchOracle(in)
		}
		full := new(big.Rat).SetInt64(p.Capacity())
		o := &bucketOracle{
			capacity: full, rate: big.NewRat(in.Limit, window), tick: p.Core().Args()[1], tokens: full, debt: debt(in),
		}
		if in.StartsEmpty {
			return &emptyOracle{bucketOracle: *o}
		}
		return o
	case limiter.SmoothBursty:
		return newBurstyOracle(in, p.Core().Args()[1])
	case limiter.SmoothWarmingUp:
		return newWarmOracle(in, p)
	case limiter.LeakyQueue:
		return newQueueOracle(in, p.Core().Args()[1])
	case limiter.Concurrency:
		return &leaseOracle{logOracle{limit: in.Limit, window: window}}
	case limiter.SlidingWindow:
		o := &segmentOracle{
			limit: in.Limit, segments: in.Segments, oldest: in.Oldest, most: in.SegmentCap, tick: p.Core().Args()[1],
		}
		if o.segments == 0 {
			o.segments = 10
		}
		if o.most == 0 {
			o.most = o.limit
		}
		o.width = window / o.segments
		return o
	case limiter.SlidingLog:
		return &logOracle{limit: in.Limit, window: window}
	default:
		return nil
	}
}

// debt is the most hits that denied requests can owe: what the limit admits in a day, or in a longer window.
func debt(in limiter.Params) *big.Rat {
	return new(big.Rat).Mul(rat(in.Limit), big.NewRat(int64(max(24*time.Hour, in.Window)), int64(in.Window)))
}

// event is n hits at one time.
type event struct{ at, n int64 }

// takeNewest takes n hits off the newest events that matter.
func takeNewest(events []event, n int64, matters func(event) bool) []event {
	for i := len(events) - 1; i >= 0 && n > 0; i-- {
		if matters(events[i]) {
			back := min(n, events[i].n)
			events[i].n -= back
			n -= back
		}
	}
	return slices.DeleteFunc(events, func(e event) bool { return e.n == 0 })
}

func sum(events []event, matters func(event) bool) (n int64) {
	for _, e := range events {
		if matters(e) {
			n += e.n
		}
	}
	return n
}

// fixedOracle counts the events of the current window.
type fixedOracle struct {
	limit, window int64
	first         bool
	start         int64 // of the window from the first hit, -1 before it
	events        []event
}

func (o *fixedOracle) current(now int64) func(event) bool {
	return func(e event) bool {
		if o.first {
			return o.start >= 0 && now < o.start+o.window && e.at >= o.start
		}
		return e.at/o.window == now/o.window
	}
}

func (o *fixedOracle) fits(now, n int64) bool { return sum(o.events, o.current(now))+n <= o.limit }

func (o *fixedOracle) charge(now, n int64) {
	if n > 0 && o.isNew(now) {
		o.start = now
	}
	o.events = append(o.events, event{now, n})
}

func (o *fixedOracle) refund(now, n int64)  { o.events = takeNewest(o.events, n, o.current(now)) }
func (o *fixedOracle) isNew(now int64) bool { return sum(o.events, o.current(now)) == 0 }

func (o *fixedOracle) ends(now int64) int64 {
	switch {
	case !o.first:
		return now - now%o.window + o.window
	case o.isNew(now):
		return now + o.window
	default:
		return o.start + o.window
	}
}

// calendarOracle counts the events of the window that the clock of its zone is in.
type calendarOracle struct {
	in     limiter.Params
	known  [][2]int64 // windows that it has looked up
	events []event
}

func (o *calendarOracle) current(now int64) func(event) bool {
	w := o.around(now)
	return func(e event) bool { return w[0] <= e.at && e.at < w[1] }
}

func (o *calendarOracle) ends(now int64) int64 { return o.around(now)[1] }

// around is the window of now.
func (o *calendarOracle) around(now int64) [2]int64 {
	i := slices.IndexFunc(o.known, func(w [2]int64) bool { return w[0] <= now && now < w[1] })
	if i < 0 {
		i = len(o.known)
		start, end := naiveWindow(o.in.Window, o.in.TimeZone, now)
		o.known = append(o.known, [2]int64{start, end})
	}
	return o.known[i]
}

func (o *calendarOracle) fits(now, n int64) bool {
	return sum(o.events, o.current(now))+n <= o.in.Limit
}
func (o *calendarOracle) charge(now, n int64)  { o.events = append(o.events, event{now, n}) }
func (o *calendarOracle) refund(now, n int64)  { o.events = takeNewest(o.events, n, o.current(now)) }
func (o *calendarOracle) isNew(now int64) bool { return sum(o.events, o.current(now)) == 0 }

// funnelOracle is a level that leaks.
type funnelOracle struct {
	capacity int64
	rate     *big.Rat // hits per microsecond
	tick     int64
	level    *big.Rat
	last     int64
	debt     *big.Rat
}

func (o *funnelOracle) at(now int64) *big.Rat {
	now -= now % o.tick
	leaked := new(big.Rat).Mul(o.rate, new(big.Rat).SetInt64(max(0, now-o.last)))
	if level := leaked.Sub(o.level, leaked); level.Sign() > 0 {
		return level
	}
	return new(big.Rat)
}

func (o *funnelOracle) set(now int64, level *big.Rat) {
	if level.Sign() < 0 {
		level = new(big.Rat)
	}
	o.level, o.last = level, now-now%o.tick
}

func (o *funnelOracle) fits(now, n int64) bool {
	level := o.at(now)
	return level.Add(level, new(big.Rat).SetInt64(n)).Cmp(new(big.Rat).SetInt64(o.capacity)) <= 0
}

func (o *funnelOracle) charge(now, n int64) {
	level := o.at(now)
	o.set(now, earlier(level.Add(level, rat(n)), new(big.Rat).Add(rat(o.capacity), o.debt)))
}

func (o *funnelOracle) refund(now, n int64)  { o.charge(now, -n) }
func (o *funnelOracle) isNew(now int64) bool { return o.at(now).Sign() == 0 }

// bucketOracle is tokens that come back.
type bucketOracle struct {
	capacity *big.Rat
	rate     *big.Rat // tokens per microsecond
	tick     int64
	tokens   *big.Rat
	last     int64
	debt     *big.Rat
}

func (o *bucketOracle) at(now int64) *big.Rat {
	now -= now % o.tick
	tokens := new(big.Rat).Mul(o.rate, new(big.Rat).SetInt64(max(0, now-o.last)))
	if tokens.Add(tokens, o.tokens).Cmp(o.capacity) > 0 {
		return new(big.Rat).Set(o.capacity)
	}
	return tokens
}

func (o *bucketOracle) fits(now, n int64) bool { return o.at(now).Cmp(new(big.Rat).SetInt64(n)) >= 0 }

func (o *bucketOracle) charge(now, n int64) {
	tokens := o.at(now)
	if tokens.Sub(tokens, new(big.Rat).SetInt64(n)).Cmp(o.capacity) > 0 {
		tokens.Set(o.capacity)
	}
	o.tokens, o.last = later(tokens, new(big.Rat).Neg(o.debt)), now-now%o.tick
}

func (o *bucketOracle) refund(now, n int64)  { o.charge(now, -n) }
func (o *bucketOracle) isNew(now int64) bool { return o.at(now).Cmp(o.capacity) == 0 }

// segmentOracle weighs the events of the newest segments and of the one before them.
type segmentOracle struct {
	limit, segments, most int64
	width, tick           int64 // of a segment, in microseconds
	oldest                limiter.Oldest
	events                []event
}

// age returns the age of an event in segments.
func (o *segmentOracle) age(now int64, e event) int64 { return now/o.width - e.at/o.width }

func (o *segmentOracle) fits(now, n int64) bool {
	if newest := sum(o.events, func(e event) bool { return o.age(now, e) == 0 }); newest+n > o.most {
		return false
	}
	inside := sum(o.events, func(e event) bool { return o.age(now, e) < o.segments })
	before := sum(o.events, func(e event) bool { return o.age(now, e) == o.segments })
	into := now % o.width
	share := big.NewRat(o.width-(into-into%o.tick), o.width)
	switch o.oldest {
	case limiter.OldestFull:
		share = big.NewRat(1, 1)
	case limiter.OldestNone:
		share = new(big.Rat)
	case limiter.OldestProportional:
	}
	u := new(big.Rat).Mul(share, new(big.Rat).SetInt64(before))
	u.Add(u, new(big.Rat).SetInt64(inside+n))
	return u.Cmp(new(big.Rat).SetInt64(o.limit)) <= 0
}

func (o *segmentOracle) charge(now, n int64) { o.events = append(o.events, event{now, n}) }

func (o *segmentOracle) refund(now, n int64) {
	o.events = takeNewest(o.events, n, func(e event) bool { return o.age(now, e) <= o.segments })
}

func (o *segmentOracle) isNew(now int64) bool {
	return sum(o.events, func(e event) bool {
		return o.age(now, e) < o.segments || o.oldest != limiter.OldestNone && o.age(now, e) == o.segments
	}) == 0
}

// logOracle counts the events of the last window.
type logOracle struct {
	limit, window int64
	events        []event
}

func (o *logOracle) alive(now int64) func(event) bool {
	return func(e event) bool { return now-o.window < e.at && e.at <= now }
}

func (o *logOracle) fits(now, n int64) bool { return sum(o.events, o.alive(now))+n <= o.limit }
func (o *logOracle) charge(now, n int64)    { o.events = append(o.events, event{now, n}) }
func (o *logOracle) refund(now, n int64)    { o.events = takeNewest(o.events, n, o.alive(now)) }
func (o *logOracle) isNew(now int64) bool   { return sum(o.events, o.alive(now)) == 0 }
