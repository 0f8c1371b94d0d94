package limiter

import (
	"time"

	"github.com/weir-ratelimit/weir/internal/step"
)

// meter is the leaky bucket as a meter (GCRA: ITU-T I.371, ATM Forum TM 4.0), which Funnel, TokenBucket, LeakyQueue,
// SmoothBursty and SmoothWarmingUp share: they differ in which levels pass, and in what the level is after a hit.
//
// The level is counted in units of which leak units leak each tick and one hit is cost units, where leak/cost is Limit
// hits per Window in ticks, reduced. In a State, the funnel is empty, which is the theoretical arrival time of GCRA, A
// microseconds after the epoch plus part/leak of a tick. With a leak of 1 a hit is a whole number of ticks and the part
// is always 0. No leak is ever lost to rounding. B is the part, and how far A was ahead when it was written (see
// withSpan).
//
// A state may be further ahead than the policy can put it: see meter.empties and meter.behind.
type meter struct {
	terms

	kind Algorithm
	tick int64 // the finest clock whose products fit, microseconds: 1, 1,000 or 1,000,000
	leak int64 // units per tick
	cost int64 // units per hit

	burst    int64 // the largest cost that ever passes, hits
	capacity int64 // the highest level at which requests pass, units
	still    int64 // the level from which on they wait, units
	floor    int64 // the lowest level that a charge leaves, units
	maxLevel int64 // the deepest debt, units
	highest  int64 // the highest level that a hit can lead to, units
	furthest int64 // how far ahead a state of that level is, in whole ticks
	mostSpan int64 // its span: see spanOf

	paysLater   bool // what passes depends on the level that a request finds, not on its cost
	startsEmpty bool
	start       int64 // the level of a bucket that starts empty, units
	linger      int64 // how long such a bucket is remembered after it became full, microseconds
}

// newMeter returns a meter that is not scaled yet.
func newMeter(in *Params) meter {
	return meter{terms: in.terms(), kind: in.Algorithm, startsEmpty: in.StartsEmpty}
}

// clocks are the lengths of a tick to choose from, finest first, in microseconds.
var clocks = [...]int64{1, 1_000, 1_000_000}

// scale chooses the finest clock in which all levels fit exactly. setLevels sets the levels for the meter's tick, leak,
// cost and maxLevel, and reports whether they fit.
func (m *meter) scale(in *Params, setLevels func() bool) bool {
	for _, tick := range clocks {
		if m.window%tick != 0 || in.MaxWait.Microseconds()%tick != 0 || in.BurstFor.Microseconds()%tick != 0 ||
			in.WarmUp.Microseconds()%tick != 0 {
			break
		}
		width := m.window / tick
		g := gcd(m.limit, width)
		m.tick, m.leak, m.cost = tick, m.limit/g, width/g
		if m.leak > 1<<partBits {
			break // a State's part has no room for it, in longer ticks neither
		}
		// A level of maxExact or less, and not further ahead than the horizon.
		m.maxLevel = step.Exact
		if step.Horizon/tick < m.maxLevel/m.leak {
			m.maxLevel = step.Horizon / tick * m.leak
		}
		if !setLevels() {
			continue
		}
		m.highest = m.capacity
		if m.denied == ChargeFull || m.paysLater {
			m.highest = m.maxLevel
		}
		m.furthest = m.highest / m.leak
		furthest := step.State{B: withSpan(0, m.furthest*m.tick)}
		m.mostSpan = spanOf(&furthest)
		return true
	}
	return false
}

// holdBurst scales a meter that holds Burst hits, of which none waits.
func (m *meter) holdBurst(in *Params) error {
	m.burst = in.Burst
	ok := m.scale(in, func() bool {
		if m.burst > m.maxLevel/m.cost {
			return false
		}
		m.capacity = m.burst * m.cost
		m.still, m.start = m.capacity, m.capacity
		if m.startsEmpty {
			m.linger = ceilDiv(m.capacity, m.leak) * m.tick
		}
		return true
	})
	if !ok {
		return burstError(in)
	}
	return nil
}

func burstError(in *Params) error {
	return paramError("burst", "%d at %d per %s needs more than 53 bits to count exactly; choose a smaller burst or a "+
		"rate with fewer digits", in.Burst, in.Limit, in.Window)
}

// ticks is a duration in whole ticks.
func (m *meter) ticks(d time.Duration) int64 { return d.Microseconds() / m.tick }

// maxDebt is up to where what a request owes is counted in full at least: one that costs more than the rate of a whole
// year may be charged less than all of it.
const maxDebt = 365 * 24 * time.Hour

// canOwe reports whether there is room for what the largest request may owe. Unless denied requests owe as well, owed
// is the level that such a request leads to: no level is higher.
func (m *meter) canOwe(owed int64) bool {
	room := m.maxLevel - m.capacity
	if m.denied != ChargeFull {
		m.maxLevel = owed
	}
	return room/m.cost >= step.MaxCost || room/m.leak >= m.ticks(maxDebt)
}

func (m *meter) Traits() step.Traits {
	t := step.Traits{
		Script: "funnel", Capacity: m.burst, Largest: m.burst, Extra: m.burst, Linger: micros(m.linger),
		PaysLater: m.paysLater,
	}
	if m.capacity > m.still {
		t.MaxWait = micros(ceilDiv(m.capacity-m.still, m.leak) * m.tick)
	}
	return t
}

func (m *meter) Args() []int64 {
	return []int64{
		m.limit, m.tick, m.leak, m.cost, m.burst, m.capacity, m.still, m.maxLevel,
		int64(m.kind), fromBool(m.startsEmpty), m.linger,
	}
}

func (m *meter) Step(s step.State, now, n int64, c step.Charge) (next step.State, o step.Outcome) {
	t := now / m.tick
	ahead, part, isCut := m.empties(&s, t)
	first := m.isFirst(&s, ahead, part)
	if first {
		ahead, part = m.start/m.leak, m.start%m.leak
	}
	level := m.level(ahead, part)

	ok, take := m.passes(level, n, c)
	back := int64(0)
	if (!ok || n < 0) && level > 0 && !first {
		if back = m.behind(&s, t); back > 0 {
			level = m.level(ahead-back, part)
			ok, take = m.passes(level, n, c)
		}
	}
	found := level
	switch {
	case take < 0:
		level = max(0, level-m.units(-take, level))
	case take > 0:
		level = m.charged(level, take)
	}
	changed := level != found || first && n != 0 || back > 0
	if changed {
		ahead, part = level/m.leak, level%m.leak
	}
	after := func(ticks int64) time.Duration { return micros((t+ticks)*m.tick - now) }
	if !ok {
		o.Delay = Never
		if need := max(n, 1); need <= m.burst {
			o.Delay = after(m.leaksTo(m.passesAt(need), ahead, part))
		}
	}
	if ok && take > 0 {
		if until := m.departs(found, level); until > m.still {
			o.Delay = after(ceilDiv(until-m.still, m.leak))
		}
	}
	o.Remaining = m.passing(level)
	if ahead > 0 || ahead == 0 && part > 0 {
		o.Reset = after(m.leaksTo(0, ahead, part))
	}
	o.Is = step.VerdictOf(ok, changed, changed && (isCut || back > 0))
	if !changed || level == 0 && !m.startsEmpty {
		return step.State{}, o
	}
	return step.State{A: (t + ahead) * m.tick, B: withSpan(part, ahead*m.tick)}, o
}

// empties returns in how many ticks from t the funnel will be empty, and the part of a tick after them: below 0 if it
// is so already.
//
// A state that was above the policy's highest level when it was written (the rule was edited, or requests bring rates
// of their own) is cut: it was full then, and has leaked by this policy since. It is not written for that, so that the
// other policies still find what they know.
func (m *meter) empties(s *step.State, t int64) (ahead, part int64, isCut bool) {
	ahead, part = ceilDiv(s.A, m.tick)-t, min(partOf(s), m.leak-1)
	if spanOf(s) > m.mostSpan {
		isCut = ahead+min(1, part) > 0
		ahead, part = writtenAt(s)/m.tick+m.furthest-t, m.highest%m.leak
	}
	return ahead, part, isCut
}

// isFirst reports whether this is the beginning of a bucket that starts empty: it is remembered for a while after it
// became full, and then starts again.
func (m *meter) isFirst(s *step.State, ahead, part int64) bool {
	return m.startsEmpty && (s.A == 0 || -ahead-min(1, part) >= m.linger/m.tick) // full for whole ticks
}

// behind returns by how many ticks the clock is behind the time at which the state was written: it was set back. Then
// the state's level is that of then, and it is written, so that it leaks from now on.
func (m *meter) behind(s *step.State, t int64) int64 { return max(0, writtenAt(s)/m.tick-t) }

// level is the level of a funnel that will be empty in ahead ticks and part of one: at most the highest one, also if
// the funnel is further ahead.
func (m *meter) level(ahead, part int64) int64 {
	switch {
	case ahead < 0:
		return 0
	case ahead > m.furthest:
		return m.highest
	}
	return min(ahead*m.leak+part, m.highest)
}

// leaksTo returns in how many whole ticks a funnel that will be empty in ahead ticks and part of one has leaked to a
// level below its own.
func (m *meter) leaksTo(level, ahead, part int64) int64 {
	ticks := ahead - level/m.leak
	if part > level%m.leak {
		ticks++
	}
	return ticks
}

// passing is how many hits of cost 1 pass one after the other at a level.
func (m *meter) passing(level int64) int64 {
	if m.paysLater {
		level -= m.cost
	}
	return max(0, m.capacity-max(level, m.floor-m.cost)) / m.cost // of a queue, the first departs now if it can
}

// passes reports whether a cost of n passes at a level, and how many hits to charge for it.
func (m *meter) passes(level, n int64, c step.Charge) (ok bool, take int64) {
	left := m.passing(level)
	switch {
	case n > 0 && m.paysLater:
		ok = left > 0 && n <= m.burst
		return ok, min(m.burst, m.amount(ok, left, n, c)) // a debt, too, is of one request at most
	case n > 0 && m.floor > 0:
		ok = n <= m.burst && m.charged(level, n) <= m.capacity
		return ok, m.amount(ok, left, n, c)
	default:
		return m.fits(left, n, c)
	}
}

// charged is the level after n hits.
func (m *meter) charged(level, n int64) int64 {
	return max(m.floor, level+m.units(n, m.maxLevel-level))
}

// passesAt is the highest level at which a cost of need passes.
func (m *meter) passesAt(need int64) int64 {
	if m.paysLater {
		return m.capacity
	}
	return m.capacity - need*m.cost
}

// departs is the level whose part above still has to leak before the request goes on: a request goes when it has leaked
// through itself, or, where it pays later, when those before it have.
func (m *meter) departs(found, level int64) int64 {
	if m.paysLater {
		return found
	}
	return level
}

// units is n hits in units, but at most room: a debt stops growing at the highest level.
func (m *meter) units(n, room int64) int64 {
	if n > room/m.cost {
		return room
	}
	return n * m.cost
}
