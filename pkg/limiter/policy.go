package limiter

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
)

// Algorithm is how a limit counts.
type Algorithm uint8

// The algorithms; docs/algorithms.md says when to choose which.
const (
	FixedWindow   Algorithm = iota + 1 // a counter per window
	Funnel                             // leaky bucket as a meter, GCRA
	TokenBucket                        // the funnel's mirror
	SlidingWindow                      // counters of a window's segments
	SlidingLog                         // every admitted hit of the window
	SmoothBursty                       // a token bucket whose next requests pay for a big one
	LeakyQueue                         // leaky bucket as a queue: requests are held back, evenly spaced
	Concurrency                        // requests in flight, given back by negative hits

	SmoothWarmingUp // fewer pass after idleness, rising to the rate
)

// Bounds of a policy's numbers.
const (
	MaxLimit      = math.MaxUint32            // hits: what Envoy's requests_per_unit can carry
	MinWindow     = time.Millisecond          // shortest window
	MaxWindow     = 10 * 365 * 24 * time.Hour // longest window
	MaxSegments   = 1000                      // of a sliding window
	MaxColdFactor = 100 * 100                 // hundredths
	MaxLogEntries = 10_000                    // default bound of a sliding log's limit
	DefaultLease  = time.Minute               // for rules that name none: Envoy's own route timeout is 15 s
	MaxWait       = time.Hour                 // longest max_wait, longest burst_seconds, and longest warm_up

	MinLeaseFor     = 5 * time.Millisecond  // shortest time of permits on lease: some round trips to Redis
	MaxLeaseFor     = time.Second           // longest
	DefaultLeaseFor = 50 * time.Millisecond // for rules that name none
)

// maxDebt is up to where SmoothBursty and SmoothWarmingUp count at least what a request owes: one that costs more than
// the rate of a whole year may be charged less than all of it.
const maxDebt = 365 * 24 * time.Hour

// ChargeDenied says what a denied request takes from the limit that denied it.
type ChargeDenied uint8

// The values of ChargeDenied.
const (
	ChargeDefault   ChargeDenied = iota // full for FixedWindow, none for the others
	ChargeNone                          // nothing
	ChargeRemaining                     // what is left
	ChargeFull                          // all of it, into debt
)

// Oldest says how much of a sliding window's partly expired segment counts.
type Oldest uint8

// The values of Oldest.
const (
	OldestProportional Oldest = iota // the share of it that is still inside the window
	OldestFull                       // all of it: never more than the limit in any window
	OldestNone                       // nothing of it: up to one segment's worth more than the limit
)

// Initial says how a token bucket or SmoothBursty starts.
type Initial uint8

// The values of Initial.
const (
	InitialFull  Initial = iota
	InitialEmpty         // fills from the first hit on; forgotten, and so empty again, when full for as long as filling takes
)

// Refill says how tokens come back.
type Refill uint8

// The values of Refill.
const (
	RefillGreedy   Refill = iota // continuously
	RefillInterval               // Limit at once every Window, counted from the first hit on a full bucket
)

// Engine says who decides in Redis. In memory it makes no difference.
type Engine uint8

// The values of Engine.
const (
	EngineWeir      Engine = iota // Weir's own step
	EngineRedisCell               // the redis-cell module, by CL.THROTTLE: a GCRA on a clock of nanoseconds
)

// Align says where fixed windows start.
type Align uint8

// The values of Align.
const (
	AlignEpoch    Align = iota // at multiples of the window since the Unix epoch
	AlignFirstHit              // with the first hit
	AlignCalendar              // with the hours, days, weeks, months or years of a time zone
)

// Params are a policy's parameters as a rule states them. A zero value stands for "not given".
type Params struct {
	Algorithm Algorithm
	// Limit is how many hits may pass per Window: N. 0 denies always.
	Limit int64
	// Window is the time W that Limit is counted over. Of Concurrency it is the lease: how long a hit that is
	// not given back counts.
	Window time.Duration
	// Burst is the capacity C of Funnel and TokenBucket in hits, the most that may pass at once, and of
	// LeakyQueue, the most that may be queued. 0 is Limit.
	Burst int64
	// Initial is of TokenBucket and SmoothBursty, Refill of TokenBucket.
	Initial Initial
	Refill  Refill
	// Engine is of Funnel, and of a TokenBucket that starts full and is refilled continuously. EngineRedisCell takes
	// windows of whole seconds, at most a hit a microsecond, and no ChargeDenied but ChargeNone.
	Engine Engine
	// MaxWait is the longest that LeakyQueue, SmoothBursty and SmoothWarmingUp hold a request back. 0 is Burst's time
	// to leak for LeakyQueue, and no wait for the others.
	MaxWait time.Duration
	// MaxCost is the largest cost of one request, in hits, of SmoothBursty and SmoothWarmingUp, which would admit any at once
	// and let the next ones pay for it. 0 is what the limit admits in as many whole windows as an hour has, in at least one.
	MaxCost int64
	// BurstFor is how long SmoothBursty saves up unused permits. 0 is 1 s.
	BurstFor time.Duration
	// WarmUp is how long SmoothWarmingUp takes from cold to its full rate under steady requests, and back when there
	// are none. 0 is DefaultWarmUp.
	WarmUp time.Duration
	// ColdFactor is how many times dearer than a warm one SmoothWarmingUp's coldest hit is, in hundredths: 101 to
	// MaxColdFactor. 0 is DefaultColdFactor.
	ColdFactor int64
	// Segments is S of SlidingWindow. 0 is 10.
	Segments int64
	// SegmentCap is the most that SlidingWindow admits in one segment, in hits. 0 is no such bound.
	SegmentCap int64
	// Oldest is of SlidingWindow.
	Oldest Oldest
	// Align is of FixedWindow. AlignCalendar goes with the windows that OnCalendar accepts.
	Align Align
	// TimeZone is whose calendar AlignCalendar follows. nil is UTC.
	TimeZone *time.Location
	// MaxLogEntries is the largest Limit that SlidingLog and Concurrency accept. 0 is MaxLogEntries, the constant.
	MaxLogEntries int64
	// ChargeDenied is what a denied request takes.
	ChargeDenied ChargeDenied
	// Store is the name of the store that has the counters. Empty is the only one, or the first of several.
	Store string
	// LeaseFor is for how long a process may take permits ahead and spend them without asking the store:
	// `consistency: leased`. 0 is strict. It goes with Funnel, TokenBucket as it is by default, FixedWindow,
	// SlidingWindow and SlidingLog, and with ChargeNone, which is then also FixedWindow's default.
	LeaseFor time.Duration
}

// Policy is a validated limit, scaled so that every number that a step computes stays below 2^53 and Lua
// agrees with Go exactly. It is immutable and safe for concurrent use.
type Policy struct {
	algorithm    Algorithm
	chargeDenied ChargeDenied
	oldest       Oldest
	align        Align
	onWall       bool
	initial      Initial
	refill       Refill
	engine       Engine
	store        string

	limit  int64 // N, hits
	window int64 // W, microseconds
	tick   int64 // the finest clock whose products fit, microseconds: 1, 1,000 or 1,000,000

	// Funnel, TokenBucket, SmoothBursty, LeakyQueue, SmoothWarmingUp; units are 1/leak of a tick.
	burst    int64 // C, hits, of the smooth ones the largest cost: none above it ever fits
	leak     int64 // N', units per tick
	cost     int64 // W', units per hit
	capacity int64 // the highest level at which requests pass, units
	still    int64 // the level from which on they wait, units
	maxLevel int64 // the deepest debt, units; with RefillInterval, hits
	reach    int64 // the furthest that a state may be ahead, ticks: beyond, it is none of ours

	calendar *calendar // FixedWindow with AlignCalendar

	leaseFor time.Duration // 0: strict

	// linger is how long what starts empty is remembered after it became full.
	linger time.Duration

	// SmoothWarmingUp
	warmUp     time.Duration
	coldFactor int64 // hundredths
	curve

	// SlidingWindow
	segments   int64 // S
	segment    int64 // W/S, microseconds
	segmentCap int64 // hits
	maxCount   int64 // the most that a segment counts, hits: the segments' sum stays exact too
}

// ParamError says which parameter of a policy is wrong, why, and what to write instead.
type ParamError struct {
	Param string // as a rule file spells it: "burst"
	Msg   string
}

// Error names the parameter and what is wrong with it.
func (e *ParamError) Error() string { return e.Param + ": " + e.Msg }

// NewPolicy checks the parameters and scales them. Its error joins a *ParamError for each wrong parameter.
func NewPolicy(in Params) (*Policy, error) {
	if _, ok := algorithmNames[in.Algorithm]; !ok {
		return nil, &ParamError{Param: "algorithm", Msg: "must be one of " + strings.Join(AlgorithmNames(), ", ")}
	}
	if err := in.validate(); err != nil {
		return nil, err
	}
	p := &Policy{
		algorithm:    in.Algorithm,
		chargeDenied: in.ChargeDenied,
		oldest:       in.Oldest,
		align:        in.Align,
		onWall:       in.Algorithm == FixedWindow && in.Align != AlignFirstHit,
		initial:      in.Initial,
		refill:       in.Refill,
		engine:       in.Engine,
		store:        in.Store,
		limit:        in.Limit,
		window:       in.Window.Microseconds(),
		tick:         1,
		leaseFor:     in.LeaseFor,
	}
	if p.chargeDenied == ChargeDefault {
		p.chargeDenied = ChargeNone
		if p.algorithm == FixedWindow && p.leaseFor == 0 {
			p.chargeDenied = ChargeFull
		}
	}
	if in.Align == AlignCalendar {
		p.calendar = newCalendar(in.Window, in.TimeZone)
	}
	if p.limit == 0 {
		return p, nil
	}
	switch p.algorithm {
	case Funnel, TokenBucket, LeakyQueue:
		p.burst = orDefault(in.Burst, in.Limit)
		if p.refill == RefillInterval {
			if err := p.scaleInterval(); err != nil {
				return nil, err
			}
			break
		}
		if err := p.scaleFunnel(&in); err != nil {
			return nil, err
		}
	case SmoothBursty, SmoothWarmingUp:
		p.burst = orDefault(in.MaxCost, min(MaxHits, in.Limit*max(1, int64(time.Hour/in.Window))))
		if p.algorithm == SmoothWarmingUp {
			p.warmUp, p.coldFactor = in.WarmUp, orDefault(in.ColdFactor, DefaultColdFactor)
			if p.warmUp == 0 {
				p.warmUp = DefaultWarmUp
			}
		}
		if err := p.scaleFunnel(&in); err != nil {
			return nil, err
		}
	case SlidingWindow:
		p.segments = orDefault(in.Segments, 10)
		p.segmentCap = orDefault(in.SegmentCap, in.Limit)
		if err := p.scaleSegments(); err != nil {
			return nil, err
		}
	default:
	}
	return p, nil
}

func orDefault(v, def int64) int64 {
	if v == 0 {
		return def
	}
	return v
}

// validate checks each parameter by itself.
func (in *Params) validate() error {
	var errs []error
	bad := func(param, format string, args ...any) {
		errs = append(errs, &ParamError{Param: param, Msg: fmt.Sprintf(format, args...)})
	}
	upTo := func(param string, v, most int64) {
		if v < 0 || v > most {
			bad(param, "must be between 0 and %d, got %d", most, v)
		}
	}
	upTo("requests_per_unit", in.Limit, MaxLimit)
	if in.Window < MinWindow || in.Window > MaxWindow {
		bad("window", "must be between %s and %s (10 years), got %s", MinWindow, MaxWindow, in.Window)
	} else if in.Window%time.Microsecond != 0 {
		bad("window", "must be a whole number of microseconds, got %s", in.Window)
	}
	upTo("burst", in.Burst, MaxLimit)
	upTo("max_cost", in.MaxCost, MaxHits)
	wait := func(param string, v time.Duration) {
		if v < 0 || v > MaxWait || v%time.Millisecond != 0 {
			bad(param, "must be whole milliseconds up to %s, got %s", MaxWait, v)
		}
	}
	wait("max_wait", in.MaxWait)
	wait("burst_seconds", in.BurstFor)
	wait("warm_up", in.WarmUp)
	if f := in.ColdFactor; f != 0 && (f < 101 || f > MaxColdFactor) {
		bad("cold_factor", "must be between 1.01 and %d, got %g", MaxColdFactor/100, float64(f)/100)
	}
	upTo("segments", in.Segments, MaxSegments)
	upTo("segment_cap", in.SegmentCap, MaxLimit)
	upTo("max_log_entries", in.MaxLogEntries, 1_000_000)
	in.validateNames(bad)
	if bound := orDefault(in.MaxLogEntries, MaxLogEntries); in.Limit > bound {
		switch in.Algorithm {
		case SlidingLog:
			bad("requests_per_unit", "a sliding_log remembers every hit, so it takes at most max_log_entries = %d per window, "+
				"got %d; use sliding_window, or raise max_log_entries", bound, in.Limit)
		case Concurrency:
			bad("requests_per_unit", "concurrency remembers every request in flight, so it takes at most max_log_entries = %d, "+
				"got %d; raise max_log_entries", bound, in.Limit)
		default:
		}
	}
	switch {
	case in.Align == AlignCalendar && !OnCalendar(in.Window):
		bad("align", "calendar goes with a window of one hour, day, week or year, or of 1, 2, 3, 4 or 6 months of 30 days, not with %s; "+
			"use epoch", in.Window)
	case in.Align != AlignCalendar && in.TimeZone != nil:
		bad("time_zone", "goes with align: calendar only; write align: calendar, or remove time_zone")
	}
	if in.Engine == EngineRedisCell {
		in.validateRedisCell(bad)
	}
	if in.LeaseFor != 0 {
		in.validateLeased(bad)
	}
	for _, name := range in.given() {
		if !in.Algorithm.Has(name) {
			bad(name, "is not a parameter of %s, which takes %s", in.Algorithm, strings.Join(in.Algorithm.Parameters(), ", "))
		}
	}
	return errors.Join(errs...)
}

// validateNames checks the values that stand for names: no rule file has others, and a program may.
func (in *Params) validateNames(bad func(param, format string, args ...any)) {
	known := func(param string, v uint8, ok bool, names []string) {
		if !ok {
			bad(param, "%d is not known: use one of %s", v, strings.Join(names, ", "))
		}
	}
	if in.ChargeDenied != ChargeDefault {
		known("charge_denied", uint8(in.ChargeDenied), in.ChargeDenied.String() != "", names(chargeDeniedNames))
	}
	known("oldest", uint8(in.Oldest), in.Oldest.String() != "", names(oldestNames))
	known("initial", uint8(in.Initial), in.Initial.String() != "", names(initialNames))
	known("refill", uint8(in.Refill), in.Refill.String() != "", names(refillNames))
	known("engine", uint8(in.Engine), in.Engine.String() != "", names(engineNames))
	known("align", uint8(in.Align), in.Align.String() != "", names(alignNames))
}

// validateRedisCell checks what CL.THROTTLE can be told.
func (in *Params) validateRedisCell(bad func(param, format string, args ...any)) {
	if in.Window%time.Second != 0 {
		bad("window", "engine: redis_cell counts per whole seconds, got %s; write a multiple of 1s, or leave engine out", in.Window)
	}
	if in.Limit > in.Window.Microseconds() {
		bad("requests_per_unit", "engine: redis_cell counts at most one hit a microsecond, got %d per %s; write less, or leave engine out",
			in.Limit, in.Window)
	}
	if in.ChargeDenied != ChargeDefault && in.ChargeDenied != ChargeNone {
		bad("charge_denied", "engine: redis_cell charges a denied request nothing; write none, or leave engine out")
	}
	if in.Initial != InitialFull {
		bad("initial", "engine: redis_cell starts full; write full, or leave engine out")
	}
	if in.Refill != RefillGreedy {
		bad("refill", "engine: redis_cell refills continuously; write greedy, or leave engine out")
	}
}

// validateLeased checks that permits can be taken ahead and given back without a trace.
func (in *Params) validateLeased(bad func(param, format string, args ...any)) {
	switch in.Algorithm {
	case Funnel, TokenBucket, FixedWindow, SlidingWindow, SlidingLog:
	default:
		bad("consistency", "leased does not go with %s, whose answers depend on the moment at which each request comes; write strict", in.Algorithm)
	}
	switch {
	case in.Engine == EngineRedisCell:
		bad("consistency", "leased does not go with engine: redis_cell; write strict, or leave engine out")
	case in.Initial != InitialFull:
		bad("consistency", "leased does not go with initial: empty; write strict, or leave initial out")
	case in.Refill != RefillGreedy:
		bad("consistency", "leased does not go with refill: interval; write strict, or leave refill out")
	}
	if in.ChargeDenied != ChargeDefault && in.ChargeDenied != ChargeNone {
		bad("charge_denied", "consistency: leased charges a denied request nothing; write none, or consistency: strict")
	}
	if in.LeaseFor < MinLeaseFor || in.LeaseFor > MaxLeaseFor {
		bad("lease_for", "must be between %s and %s, got %s", MinLeaseFor, MaxLeaseFor, in.LeaseFor)
	} else if in.Window >= MinWindow && in.LeaseFor > in.Window {
		bad("lease_for", "must be at most the window, %s, got %s", in.Window, in.LeaseFor)
	}
}

// given names the parameters that are not left at their zero value and that not every algorithm has.
func (in *Params) given() []string {
	var names []string
	for _, f := range []struct {
		name  string
		given bool
	}{
		{"burst", in.Burst != 0},
		{"initial", in.Initial != InitialFull},
		{"refill", in.Refill != RefillGreedy},
		{"engine", in.Engine != EngineWeir},
		{"max_wait", in.MaxWait != 0},
		{"max_cost", in.MaxCost != 0},
		{"burst_seconds", in.BurstFor != 0},
		{"warm_up", in.WarmUp != 0},
		{"cold_factor", in.ColdFactor != 0},
		{"segments", in.Segments != 0},
		{"segment_cap", in.SegmentCap != 0},
		{"oldest", in.Oldest != OldestProportional},
		{"align", in.Align != AlignEpoch},
		{"time_zone", in.TimeZone != nil},
		{"max_log_entries", in.MaxLogEntries != 0},
	} {
		if f.given {
			names = append(names, f.name)
		}
	}
	return names
}

// ticks are the clocks to choose from, finest first, in microseconds.
var ticks = [...]int64{1, 1_000, 1_000_000}

// scaleFunnel chooses the finest clock in which the capacity and its time to leak fit exactly.
func (p *Policy) scaleFunnel(in *Params) error {
	for _, tick := range ticks {
		if p.window%tick != 0 || in.MaxWait.Microseconds()%tick != 0 || in.BurstFor.Microseconds()%tick != 0 ||
			in.WarmUp.Microseconds()%tick != 0 {
			break
		}
		width := p.window / tick
		g := gcd(p.limit, width)
		p.tick, p.leak, p.cost = tick, p.limit/g, width/g
		// A level of maxExact or less, and not further ahead than the horizon.
		p.maxLevel = maxExact
		if horizon/tick < p.maxLevel/p.leak {
			p.maxLevel = horizon / tick * p.leak
		}
		if p.setLevels(in) {
			p.reach = p.highestLevel()/p.leak + grace/p.tick
			return nil
		}
	}
	switch p.algorithm {
	case SmoothWarmingUp:
		return &ParamError{Param: "warm_up", Msg: fmt.Sprintf("%d per %s needs more than 53 bits to count exactly with a warm_up of %s and "+
			"a cold_factor of %g; choose a rate with fewer digits, a shorter warm_up, cold_factor: 3, or warm_up and max_wait in whole seconds",
			p.limit, time.Duration(p.window)*time.Microsecond, p.warmUp, float64(p.coldFactor)/100)}
	case SmoothBursty:
		return &ParamError{Param: "requests_per_unit", Msg: fmt.Sprintf("%d per %s needs more than 53 bits to count what one large request "+
			"owes; choose a rate with fewer digits, or max_wait and burst_seconds in whole seconds", p.limit, time.Duration(p.window)*time.Microsecond)}
	default:
	}
	return &ParamError{Param: "burst", Msg: fmt.Sprintf("%d at %d per %s needs more than 53 bits to count exactly; "+
		"choose a smaller burst or a rate with fewer digits", p.burst, p.limit, time.Duration(p.window)*time.Microsecond)}
}

// setLevels says at which levels requests pass, and from which on they wait, if that fits.
func (p *Policy) setLevels(in *Params) bool {
	inTicks := func(d time.Duration) int64 { return d.Microseconds() / p.tick }
	wait := inTicks(in.MaxWait)
	switch p.algorithm {
	case SmoothBursty:
		saved := inTicks(time.Second)
		if in.BurstFor != 0 {
			saved = inTicks(in.BurstFor)
		}
		if saved+wait > p.maxLevel/p.leak/2 || p.cost > p.maxLevel/2 {
			return false
		}
		p.still = saved * p.leak
		p.capacity = p.still + wait*p.leak
		if p.initial == InitialEmpty {
			p.linger = micros(saved * p.tick)
		}
		return p.owes(p.maxLevel - p.capacity)
	case SmoothWarmingUp:
		return p.setCurve(in)
	case LeakyQueue:
		if p.burst > p.maxLevel/p.cost/4 || wait > p.maxLevel/p.leak/4 {
			return false
		}
		p.still = p.burst * p.cost
		p.capacity = 2 * p.still
		if in.MaxWait != 0 {
			p.capacity = min(p.capacity, p.still+wait*p.leak)
		}
	default:
		if p.burst > p.maxLevel/p.cost {
			return false
		}
		p.capacity = p.burst * p.cost
		p.still = p.capacity
		if p.initial == InitialEmpty {
			p.linger = micros(ceilDiv(p.capacity, p.leak) * p.tick)
		}
	}
	return true
}

// owes says whether room is enough for what the largest request may owe.
func (p *Policy) owes(room int64) bool {
	return room/p.cost >= MaxHits || room/p.leak >= maxDebt.Microseconds()/p.tick
}

// scaleInterval bounds the debt of a bucket that is refilled in batches to what comes back before the horizon.
func (p *Policy) scaleInterval() error {
	p.maxLevel = int64(maxExact / 2)
	if batches := horizon / p.window; batches < p.maxLevel/p.limit {
		p.maxLevel = batches * p.limit
	}
	if p.burst > p.maxLevel {
		return &ParamError{Param: "burst", Msg: fmt.Sprintf("%d tokens at %d per %s take more than 142 years; choose a smaller burst",
			p.burst, p.limit, time.Duration(p.window)*time.Microsecond)}
	}
	if p.initial == InitialEmpty {
		p.linger = micros(ceilDiv(p.burst, p.limit) * p.window)
	}
	return nil
}

// scaleSegments checks that the window divides into its segments, and chooses the finest clock in which a
// segment's share of the limit is exact.
func (p *Policy) scaleSegments() error {
	if p.window%p.segments != 0 {
		return &ParamError{Param: "segments", Msg: fmt.Sprintf("%d segments of %s are not whole microseconds; use %d",
			p.segments, time.Duration(p.window)*time.Microsecond, divisorNear(p.window, p.segments))}
	}
	p.segment = p.window / p.segments
	if p.segmentCap > p.limit {
		return &ParamError{Param: "segment_cap", Msg: fmt.Sprintf("must be at most the limit, %d, got %d", p.limit, p.segmentCap)}
	}
	for _, tick := range ticks {
		if p.segment%tick != 0 {
			break
		}
		if width := p.segment / tick; p.limit <= maxExact/width/2 {
			p.tick, p.maxCount = tick, maxExact/max(width, p.segments+1)
			return nil
		}
	}
	return &ParamError{Param: "requests_per_unit", Msg: fmt.Sprintf("%d in segments of %s need more than 53 bits to count exactly; "+
		"use more segments, or whole seconds", p.limit, time.Duration(p.segment)*time.Microsecond)}
}

// divisorNear is the divisor of window that is nearest to segments.
func divisorNear(window, segments int64) int64 {
	for d := int64(1); ; d++ {
		if segments-d >= 1 && window%(segments-d) == 0 {
			return segments - d
		}
		if segments+d <= MaxSegments && window%(segments+d) == 0 {
			return segments + d
		}
	}
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// Algorithm is how the limit counts.
func (p *Policy) Algorithm() Algorithm { return p.algorithm }

// Limit is how many hits may pass per Window.
func (p *Policy) Limit() int64 { return p.limit }

// Window is the time that Limit is counted over.
func (p *Policy) Window() time.Duration { return time.Duration(p.window) * time.Microsecond }

// Capacity is the most hits that can pass at once: the burst where the algorithm has one, else the limit.
func (p *Policy) Capacity() int64 {
	switch {
	case p.limit == 0:
		return 0
	case p.algorithm == Funnel || p.algorithm == TokenBucket || p.algorithm == LeakyQueue:
		return p.burst
	case p.algorithm == SmoothBursty:
		return p.passing(0)
	case p.algorithm == SmoothWarmingUp:
		return p.capacity/p.cost + 1 // of a warm one
	case p.algorithm == SlidingWindow:
		return min(p.limit, p.segmentCap)
	default:
		return p.limit
	}
}

// Largest is the highest cost, in hits, that can ever fit.
func (p *Policy) Largest() int64 {
	if (p.algorithm == SmoothBursty || p.algorithm == SmoothWarmingUp) && p.limit > 0 {
		return p.burst
	}
	return p.Capacity()
}

// OnWallClock says whether the policy's windows begin where the clocks on the wall say so: FixedWindow but for
// AlignFirstHit.
func (p *Policy) OnWallClock() bool { return p.onWall }

// Oldest is how a sliding window's partly expired segment counts.
func (p *Policy) Oldest() Oldest { return p.oldest }

// Initial is how a token bucket or SmoothBursty starts.
func (p *Policy) Initial() Initial { return p.initial }

// Refill is how a token bucket's tokens come back.
func (p *Policy) Refill() Refill { return p.refill }

// TimeZone is whose calendar the windows follow, nil if they follow none.
func (p *Policy) TimeZone() *time.Location {
	if p.calendar == nil {
		return nil
	}
	return p.calendar.zone
}

// Identity can be compared: it is equal for policies that decide alike, also if their time zone was loaded twice.
func (p *Policy) Identity() any {
	numbers := *p
	numbers.calendar = nil
	return struct {
		numbers Policy
		zone    zoneIdentity
	}{numbers, identityOf(p.TimeZone())}
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

// Store is the name of the store that has the counters, empty for the first.
func (p *Policy) Store() string { return p.store }

// In is the policy with its counters in the store of that name.
func (p *Policy) In(store string) *Policy {
	moved := *p
	moved.store = store
	return &moved
}

// Engine is who decides in Redis.
func (p *Policy) Engine() Engine { return p.engine }

// MaxWait is the longest Decision.Wait of an admitted hit, 0 for algorithms that hold nothing back.
func (p *Policy) MaxWait() time.Duration {
	if p.limit == 0 || p.capacity == p.still || p.leak == 0 {
		return 0
	}
	return micros(ceilDiv(p.capacity-p.still, p.leak) * p.tick)
}

// WarmUp is how long SmoothWarmingUp takes to its full rate, 0 for the other algorithms.
func (p *Policy) WarmUp() time.Duration { return p.warmUp }

// ColdFactor is how many times dearer than a warm one its coldest hit is, in hundredths, 0 for the other algorithms.
func (p *Policy) ColdFactor() int64 { return p.coldFactor }

// ChargeDenied is what a denied request takes; never ChargeDefault.
func (p *Policy) ChargeDenied() ChargeDenied { return p.chargeDenied }

// LeaseFor is for how long permits may be taken ahead, 0 where the store decides each request.
func (p *Policy) LeaseFor() time.Duration { return p.leaseFor }

// Args returns the numbers that the algorithm's step works with, in the order in which its Lua twin in
// redisstore/lua reads them; what Edges returns follows. All are below 2^53.
func (p *Policy) Args() []int64 {
	switch p.algorithm {
	case FixedWindow:
		return []int64{p.limit, p.window, int64(p.align)}
	case Funnel, TokenBucket, SmoothBursty, LeakyQueue:
		if p.engine == EngineRedisCell {
			return []int64{p.limit, p.window / time.Second.Microseconds(), p.burst}
		}
		if p.refill == RefillInterval {
			return []int64{p.limit, p.window, p.burst, p.maxLevel, int64(p.initial), p.linger.Microseconds()}
		}
		return []int64{
			p.limit, p.tick, p.leak, p.cost, p.burst, p.capacity, p.still, p.maxLevel,
			int64(p.algorithm), int64(p.initial), p.linger.Microseconds(),
		}
	case SmoothWarmingUp:
		c := &p.curve
		return []int64{
			p.limit, p.tick, p.leak, p.cost, p.capacity, p.maxLevel,
			c.idle, c.gain, c.full, c.permit, c.warm, c.grid, c.num, c.den, p.burst,
		}
	case SlidingWindow:
		return []int64{p.limit, p.tick, p.segments, p.segment, p.segmentCap, p.maxCount, int64(p.oldest)}
	case SlidingLog, Concurrency:
		return []int64{p.limit, p.window, int64(p.algorithm)}
	}
	return nil
}
