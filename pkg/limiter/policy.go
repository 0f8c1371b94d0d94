package limiter

import (
	"strings"
	"time"
)

// Policy is a checked limit, scaled so that every number that a step computes stays below 2^53 and Lua agrees with Go
// exactly. It is immutable and safe for concurrent use.
type Policy struct {
	algorithm algorithm
	traits    traits
	params    Params // with all defaults of the algorithm
}

// NewPolicy checks the parameters and scales them. Its error joins a *ParamError for each wrong parameter.
func NewPolicy(in Params) (*Policy, error) {
	if !in.Algorithm.known() {
		return nil, paramError("algorithm", "must be one of %s", strings.Join(AlgorithmNames(), ", "))
	}
	if err := in.validate(); err != nil {
		return nil, err
	}
	if in.ChargeDenied == ChargeDefault {
		in.ChargeDenied = in.Algorithm.DefaultChargeDenied()
	}
	p := &Policy{algorithm: denyAll{}}
	if in.Limit > 0 || algorithms[in.Algorithm].is&inWindows != 0 {
		var err error
		if p.algorithm, err = algorithms[in.Algorithm].make(&in); err != nil {
			return nil, err
		}
	}
	p.params, p.traits = in, p.algorithm.traits()
	return p, nil
}

// Params returns the limit's parameters, with all defaults of its algorithm.
func (p *Policy) Params() Params { return p.params }

// Algorithm is how the limit counts.
func (p *Policy) Algorithm() Algorithm { return p.params.Algorithm }

// Limit is how many hits may pass per Window.
func (p *Policy) Limit() int64 { return p.params.Limit }

// Window is the time that Limit is counted over.
func (p *Policy) Window() time.Duration { return p.params.Window }

// ChargeDenied is what a denied request takes; never ChargeDefault.
func (p *Policy) ChargeDenied() ChargeDenied { return p.params.ChargeDenied }

// Capacity is the most hits that can pass at once: the burst where the algorithm has one, else the limit.
func (p *Policy) Capacity() int64 { return p.traits.capacity }

// Bound returns the most hits that can pass in any time as long as Window if no request costs more than dearest hits,
// whatever the traffic. A calendar's window that is shorter than Window adds Limit.
func (p *Policy) Bound(dearest int64) int64 {
	if p.traits.overshoots {
		return p.params.Limit + p.traits.extra + dearest - 1
	}
	return p.params.Limit + p.traits.extra
}

// Largest is the highest cost, in hits, that can ever fit.
func (p *Policy) Largest() int64 { return p.traits.largest }

// MaxWait is the longest Decision.Wait of an admitted hit, 0 for algorithms that delay nothing.
func (p *Policy) MaxWait() time.Duration { return p.traits.maxWait }

// OnWallClock reports whether the windows begin where the clocks on the wall say so: FixedWindow but for AlignFirstHit.
func (p *Policy) OnWallClock() bool { return p.traits.onWall }

// LooksAtLimit reports whether a hit that only looks may fit where a hit of cost 1 does not.
func (p *Policy) LooksAtLimit() bool {
	return p.params.LookAtLimit && p.params.Algorithm == FixedWindow
}

// CountsInWindows reports whether the limit counts in windows that end as a whole, so that State.A is when one began.
func (p *Policy) CountsInWindows() bool { return algorithms[p.params.Algorithm].is&inWindows != 0 }

// KeepsList reports whether the limit's states carry a List.
func (p *Policy) KeepsList() bool { return algorithms[p.params.Algorithm].is&keepsList != 0 }

// PaysLater reports whether a cost of several hits passes where one hit does, so that later ones pay for it.
func (p *Policy) PaysLater() bool { return p.traits.paysLater }

// CanCacheDenial reports whether a denial holds until its RetryAfter whatever else is charged, so that it can be
// repeated without asking the store: other hits only push its end further away, and a denied hit is not charged, or not
// so that a later answer shows it.
func (p *Policy) CanCacheDenial() bool { return p.traits.cacheable }

// Counter returns what the limit's counter holds after a decision, in hits, and what the algorithm calls that: "count",
// "level", "tokens", "stored", "queued" or "in_use". The name is empty where the decision does not tell.
func (p *Policy) Counter(d *Decision) (name string, hits int64) {
	a := &algorithms[p.params.Algorithm]
	switch {
	case p.traits.partial:
		return "", 0
	case a.is&showsLeft != 0:
		return a.counter, d.Remaining
	default:
		return a.counter, max(0, p.traits.capacity-d.Remaining)
	}
}

// Script is the name of the file in redisstore/lua that mirrors the limit's step.
func (p *Policy) Script() string { return p.traits.script }

// Args returns the numbers that the Lua twin of the step reads, in the order that the head of its file gives; what
// Edges returns follows. All are below 2^53.
func (p *Policy) Args() []int64 { return p.algorithm.args() }

// Edges returns the numbers that follow Args and depend on the time: for AlignCalendar where the windows around now
// begin, the one before the current one first, in microseconds since the Unix epoch, since Lua knows no time zones;
// else none. They are not to be changed.
func (p *Policy) Edges(now int64) []int64 {
	f, ok := p.algorithm.(*fixedWindow)
	if !ok || f.calendar == nil {
		return nil
	}
	return f.calendar.around(now)[:]
}

// Identity can be compared: it is equal for policies that decide alike, also if their time zone was loaded separately.
func (p *Policy) Identity() any {
	numbers := p.params
	numbers.TimeZone, numbers.MaxLogEntries = nil, 0
	return struct {
		numbers Params
		zone    zoneIdentity
	}{numbers, identityOf(p.params.TimeZone)}
}

// zoneIdentity tells time zones apart by their name, and, as anybody can make one of any name, by two offsets from UTC.
type zoneIdentity struct {
	name           string
	winter, summer int // seconds
}

func identityOf(zone *time.Location) zoneIdentity {
	if zone == nil {
		return zoneIdentity{}
	}
	const january, july = 1_767_225_600, 1_782_864_000 // 2026
	id := zoneIdentity{name: zone.String()}
	_, id.winter = time.Unix(january, 0).In(zone).Zone()
	_, id.summer = time.Unix(july, 0).In(zone).Zone()
	return id
}

// Share returns the policy of one of n parts of the limit, each with a counter of its own. All n together let pass what
// the limit does, or n hits where that is less, since a share lets at least one pass.
//
// A limit that is a rate (Funnel, LeakyQueue and their like) is n times slower, over a burst that is divided; one that
// counts in windows gets a part of the number, and so does a rate that cannot be counted exactly n times slower. A part
// is rounded down. What can be counted in neither way becomes a FixedWindow. The error is of Params that are no policy
// by themselves.
func (in Params) Share(n int64) (*Policy, error) {
	if _, err := NewPolicy(in); err != nil || n <= 1 {
		return NewPolicy(in)
	}
	fixed := Params{Algorithm: FixedWindow, Limit: part(in.Limit, n), Window: in.Window, ChargeDenied: in.ChargeDenied}
	if algorithms[in.Algorithm].is&isRate != 0 && in.Limit > 0 && in.Refill == RefillGreedy {
		if p, err := NewPolicy(in.slower(n)); err == nil {
			return p, nil
		}
	}
	in.Limit, in.Burst, in.SegmentCap = part(in.Limit, n), part(in.Burst, n), part(in.SegmentCap, n)
	if p, err := NewPolicy(in); err == nil {
		return p, nil
	}
	return NewPolicy(fixed)
}

// slower is the limit at the n-th part of its rate. Its window may be longer than a policy's can be.
func (in Params) slower(n int64) Params {
	in.Window *= time.Duration(min(n, 1+int64(MaxWindow/in.Window)))
	if in.Algorithm.Has("burst") {
		in.Burst = part(orDefault(in.Burst, in.Limit), n)
	}
	return in
}

// part is the n-th part of v, at least 1, or 0 of 0.
func part(v, n int64) int64 {
	if v == 0 {
		return 0
	}
	return max(1, v/n)
}
