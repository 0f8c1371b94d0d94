package limiter

import (
	"time"

	"github.com/weir-ratelimit/weir/internal/step"
)

// meter is the leaky bucket as a meter (GCRA: ITU-T I.371, ATM Forum TM 4.0). Funnel, TokenBucket, LeakyQueue,
// SmoothBursty and SmoothWarmingUp share it, with different rules for which levels pass and for the level after a hit.
//
// The level is counted in units. The funnel leaks leak units per tick, and a hit adds cost units; leak/cost is Limit
// hits per Window, in ticks, as a reduced fraction. A State holds the time at which the funnel is empty, the
// theoretical arrival time of GCRA: A microseconds after the Unix epoch plus part/leak of a tick. B holds part and the
// span, which is how far A was ahead when the state was written (see withSpan). No leak is ever lost to rounding.
//
// A state may be further ahead than the policy allows: see meter.empties and meter.behind.
type meter struct {
	terms

	kind Algorithm
	tick int64 // length of a tick, microseconds: 1, 1,000 or 1,000,000
	leak int64 // units per tick
	cost int64 // units per hit

	burst    int64 // largest cost that is ever admitted, hits
	capacity int64 // highest level at which requests pass, units
	still    int64 // level above which requests wait, units
	floor    int64 // lowest level after a charge, units
	maxLevel int64 // level at which debt stops growing, units
	highest  int64 // highest level after any hit, units
	furthest int64 // time in which highest leaks, whole ticks
	mostSpan int64 // span of a state at the highest level: see spanOf

	paysLater   bool // a request passes by the level that it finds, whatever its cost
	startsEmpty bool
	start       int64 // level of a bucket that starts empty, units
	linger      int64 // how long a full bucket that starts empty is remembered, microseconds
}

// newMeter returns a meter that still has to be scaled.
func newMeter(in *Params) meter {
	return meter{terms: in.terms(), kind: in.Algorithm, startsEmpty: in.StartsEmpty}
}

// largestDebt is the largest debt with ChargeFull, as the time in which the debt leaks. A longer Window replaces it.
const largestDebt = 24 * time.Hour

// clocks are the possible lengths of a tick, finest first, in microseconds.
var clocks = [...]int64{1, 1_000, 1_000_000}

// scale chooses the shortest tick with which all levels are exact, and reports whether there is one. setLevels sets the
// levels for the meter's tick, leak, cost and maxLevel, and reports whether they fit.
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
			break // the part does not fit into a State, even with longer ticks
		}
		// maxLevel is an exact number of units, which leak within step.Horizon.
		m.maxLevel = step.Exact
		if step.Horizon/tick < m.maxLevel/m.leak {
			m.maxLevel = step.Horizon / tick * m.leak
		}
		if !setLevels() {
			continue
		}
		m.highest = m.capacity
		debt := m.ticks(max(largestDebt, in.Window))
		switch {
		case m.reserve > 0: // as much as one end can charge: docs/adr/0091
			m.maxLevel = m.capacity + m.units(max(in.Limit, in.Burst), m.maxLevel-m.capacity)
		case !m.paysLater && debt < (m.maxLevel-m.capacity)/m.leak:
			m.maxLevel = m.capacity + debt*m.leak
		}
		if m.denied == ChargeFull || m.paysLater || m.reserve > 0 {
			m.highest = m.maxLevel
		}
		m.furthest = m.highest / m.leak
		furthest := step.State{B: withSpan(0, m.furthest*m.tick)}
		m.mostSpan = spanOf(&furthest)
		return true
	}
	return false
}

// holdBurst scales a meter that holds Burst hits and delays no request.
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

// ticks returns d in whole ticks.
func (m *meter) ticks(d time.Duration) int64 { return d.Microseconds() / m.tick }

// maxDebt is the debt up to which each request is charged in full, as the time in which the debt leaks. A request that
// costs more than a year's hits may be charged less.
const maxDebt = 365 * 24 * time.Hour

// canOwe reports whether there is room for the debt of the largest request, and sets maxLevel to owed, the level after
// that request. No level is higher, even if denied requests are charged in full.
func (m *meter) canOwe(owed int64) bool {
	room := m.maxLevel - m.capacity
	m.maxLevel = owed
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
		int64(m.kind), fromBool(m.startsEmpty), m.linger, m.highest,
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
		level -= m.returned(-take, level, t)
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

// empties returns the time from t until the funnel is empty, in ticks and a part of a tick, and whether the state was
// cut. ahead is negative if the funnel is empty already.
//
// A state is cut if it was written with a level above the policy's highest level, because the rule was edited or
// requests bring overrides. The funnel then counts as full when it was written, and leaks by this policy from then on.
// A step that only cuts the state writes nothing, so that other policies of the counter still read the original state.
func (m *meter) empties(s *step.State, t int64) (ahead, part int64, isCut bool) {
	ahead, part = ceilDiv(s.A, m.tick)-t, min(partOf(s), m.leak-1)
	if spanOf(s) > m.mostSpan {
		isCut = ahead+min(1, part) > 0
		ahead, part = writtenAt(s)/m.tick+m.furthest-t, m.highest%m.leak
	}
	return ahead, part, isCut
}

// isFirst reports whether a bucket that starts empty starts now, because it was never hit or has been full for linger.
func (m *meter) isFirst(s *step.State, ahead, part int64) bool {
	return m.startsEmpty && (s.A == 0 || -ahead-min(1, part) >= m.linger/m.tick) // full for whole ticks
}

// behind returns the number of ticks from t to the last write of the state, above 0 only if the clock was set back. The
// step then continues from the level at that write, and writes its result, so that the funnel leaks from now on.
func (m *meter) behind(s *step.State, t int64) int64 { return max(0, writtenAt(s)/m.tick-t) }

// level returns the level, at most highest, of a funnel that will be empty in ahead + part/leak ticks.
func (m *meter) level(ahead, part int64) int64 {
	switch {
	case ahead < 0:
		return 0
	case ahead > m.furthest:
		return m.highest
	}
	return min(ahead*m.leak+part, m.highest)
}

// leaksTo returns the number of whole ticks until the funnel has leaked to level, which must be below the current
// level. The funnel will be empty in ahead + part/leak ticks.
func (m *meter) leaksTo(level, ahead, part int64) int64 {
	ticks := ahead - level/m.leak
	if part > level%m.leak {
		ticks++
	}
	return ticks
}

// passing returns how many hits of cost 1 pass at level, one after another.
func (m *meter) passing(level int64) int64 {
	if m.paysLater {
		level -= m.cost
	}
	return max(0, m.capacity-max(level, m.floor-m.cost)) / m.cost // a charge raises the level to floor
}

// passes reports whether a cost of n passes at level, and how many hits to charge for it.
func (m *meter) passes(level, n int64, c step.Charge) (ok bool, take int64) {
	left := m.passing(level)
	switch {
	case n > 0 && m.paysLater:
		ok = left > 0 && n <= m.burst
		return ok, min(m.burst, m.amount(ok, left, n, c)) // one request is charged at most burst hits
	case n > 0 && m.floor > 0:
		ok = n <= m.burst && m.charged(level, n) <= m.capacity
		return ok, m.amount(ok, left, n, c)
	default:
		return m.fits(left, n, c)
	}
}

// charged returns the level after a charge of n hits.
func (m *meter) charged(level, n int64) int64 {
	return max(m.floor, level+m.units(n, m.maxLevel-level))
}

// TakesBack implements step.TakesBack for policies with a Reserve.
func (m *meter) TakesBack(gone int64, _ bool, _ int64) step.Algorithm {
	own := *m
	own.gone = gone
	return &own
}

// returned returns the units by which a refund of n hits at tick t lowers the level. Of the charge after which the
// funnel is empty at gone, only the hits that leak from t on have not leaked yet.
func (m *meter) returned(n, level, t int64) int64 {
	back := m.units(n, level)
	if left := max(0, m.gone/m.tick-t); m.gone > 0 && left < ceilDiv(back, m.leak) {
		return left * m.leak
	}
	return back
}

// passesAt returns the highest level at which a cost of need passes.
func (m *meter) passesAt(need int64) int64 {
	if m.paysLater {
		return m.capacity
	}
	return m.capacity - need*m.cost
}

// departs returns the level that must leak to still before the request goes on: the level after the charge, or, if
// requests pay later, the level that the request found.
func (m *meter) departs(found, level int64) int64 {
	if m.paysLater {
		return found
	}
	return level
}

// units returns n hits in units, but at most room, because debt stops growing at maxLevel.
func (m *meter) units(n, room int64) int64 {
	if n > room/m.cost {
		return room
	}
	return n * m.cost
}
