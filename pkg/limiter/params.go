package limiter

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/internal/step"
)

// Params are a limit's parameters: NewFunnel and its like make them, and a field sets what is not the default. But for
// Algorithm, Limit and Window, a zero value stands for the default. The algorithm refuses a parameter that it does not
// have.
type Params struct {
	Algorithm Algorithm
	// Limit is how many hits may pass per Window, N: from 1 to 2^48, where numbers with many digits need windows with few.
	Limit int64
	// DenyAll replaces Limit, and denies every hit.
	DenyAll bool
	// Window is the time W that Limit is counted over: from 1 ms to 10 years, in whole microseconds. Of Concurrency it is
	// the lease: how long a hit that is not refunded counts.
	Window time.Duration
	// Burst is the capacity C of Funnel and TokenBucket in hits, the most that may pass at once, and of
	// LeakyQueue, the most that may be queued. 0 is Limit.
	Burst int64
	// StartsEmpty has TokenBucket and SmoothBursty fill from the first hit on. A bucket that was full for as long as
	// filling takes is empty again. It is `initial: empty` of a rule file.
	StartsEmpty bool
	// RefillsAtOnce refills TokenBucket by Limit at once every Window, counted from the first hit on a full bucket, and
	// not continuously. It is `refill: interval` of a rule file.
	RefillsAtOnce bool
	// MaxWait is the longest that LeakyQueue, SmoothBursty and SmoothWarmingUp hold a request back, up to an hour. 0 is
	// Burst's time to leak for LeakyQueue, and no wait for the others.
	MaxWait time.Duration
	// MaxCost is the largest cost of one request, in hits, of SmoothBursty and SmoothWarmingUp, which would admit any at
	// once and let the next ones pay for it: below 2^32. 0 is what the limit admits in as many whole windows as
	// an hour has, in at least one.
	MaxCost int64
	// BurstFor is how long SmoothBursty saves up unused permits, up to an hour. 0 is 1 s.
	BurstFor time.Duration
	// WarmUp is how long SmoothWarmingUp takes from cold to its full rate under steady requests, and back when there
	// are none: up to an hour. 0 is 10 s.
	WarmUp time.Duration
	// ColdFactor is how many times dearer than a warm one SmoothWarmingUp's coldest hit is, in hundredths: 101 to
	// 10,000. 0 is 300.
	ColdFactor int64
	// Segments is S of SlidingWindow, at most 1,000. 0 is 10.
	Segments int64
	// SegmentCap is the most that SlidingWindow admits in one segment, in hits. 0 is no such bound.
	SegmentCap int64
	// Oldest is of SlidingWindow.
	Oldest Oldest
	// Align is of FixedWindow. AlignCalendar goes with windows of one hour, day (24 h), week or year (365 days),
	// and of 1, 2, 3, 4 or 6 months of 30 days.
	Align Align
	// LookAtLimit is of FixedWindow; the others do not read it. A hit that only looks fits while no more than Limit is
	// counted, and not only while one more hit would, and a Limit of 0 counts, too.
	LookAtLimit bool
	// TimeZone is whose calendar AlignCalendar follows. nil is UTC.
	TimeZone *time.Location
	// MaxLogEntries is the largest Limit that SlidingLog and Concurrency accept, up to 1,000,000. 0 is 10,000.
	MaxLogEntries int64
	// ChargeDenied is what a denied request takes.
	ChargeDenied ChargeDenied
}

// ParamError says which parameter of a policy is wrong, why, and what to write instead.
type ParamError struct {
	// Param is the field of Params in snake case: "burst_for" of BurstFor. "initial" is StartsEmpty, and "refill" is
	// RefillsAtOnce.
	Param string
	Msg   string
}

// Error names the parameter and what is wrong with it.
func (e *ParamError) Error() string { return e.Param + ": " + e.Msg }

func paramError(param, format string, args ...any) error {
	return &ParamError{Param: param, Msg: fmt.Sprintf(format, args...)}
}

// terms are what all algorithms share.
func (in *Params) terms() terms {
	return terms{limit: in.Limit, window: in.Window.Microseconds(), denied: in.ChargeDenied}
}

// validate checks each parameter by itself, and that the algorithm takes those that are given.
func (in *Params) validate() error {
	var errs, foreign []error
	bad := func(param, format string, args ...any) { errs = append(errs, paramError(param, format, args...)) }
	given := func(param string, isGiven bool) {
		if isGiven && !slices.Contains(in.Algorithm.Parameters(), param) {
			foreign = append(foreign, paramError(param, "is not a parameter of %s, which takes %s",
				in.Algorithm, strings.Join(in.Algorithm.Parameters(), ", ")))
		}
	}
	upTo := func(param string, v, most int64) {
		if v < 0 || v > most {
			bad(param, "must be between 0 and %d, got %d", most, v)
		}
	}
	number := func(param string, v, most int64) {
		given(param, v != 0)
		upTo(param, v, most)
	}
	wait := func(param string, v time.Duration) {
		given(param, v != 0)
		if v < 0 || v > step.MaxWait || v%time.Millisecond != 0 {
			bad(param, "must be whole milliseconds up to %s, got %s", step.MaxWait, v)
		}
	}
	name := func(param string, v uint8, names []string) {
		given(param, v != 0)
		if int(v) >= len(names) {
			bad(param, "%d is not known: use one of %s", v, strings.TrimPrefix(strings.Join(names, ", "), ", "))
		}
	}
	switch upTo("limit", in.Limit, step.MaxLimit); {
	case in.Limit == 0 && !in.DenyAll:
		bad("limit", "there is none: say how many hits may pass per window, from 1 on, or set DenyAll to deny all")
	case in.Limit != 0 && in.DenyAll:
		bad("limit", "must be 0 with DenyAll, got %d", in.Limit)
	}
	if in.Window < step.MinWindow || in.Window > step.MaxWindow {
		bad("window", "must be between %s and %s (10 years), got %s", step.MinWindow, step.MaxWindow, in.Window)
	} else if in.Window%time.Microsecond != 0 {
		bad("window", "must be a whole number of microseconds, got %s", in.Window)
	}
	number("burst", in.Burst, step.MaxLimit)
	given("initial", in.StartsEmpty)
	given("refill", in.RefillsAtOnce)
	wait("max_wait", in.MaxWait)
	number("max_cost", in.MaxCost, step.MaxCost)
	wait("burst_for", in.BurstFor)
	wait("warm_up", in.WarmUp)
	given("cold_factor", in.ColdFactor != 0)
	if f := in.ColdFactor; f != 0 && (f < 101 || f > step.MaxColdFactor) {
		bad("cold_factor", "must be between 1.01 and %d, got %g", step.MaxColdFactor/100, float64(f)/100)
	}
	number("segments", in.Segments, step.MaxSegments)
	number("segment_cap", in.SegmentCap, step.MaxLimit)
	name("oldest", uint8(in.Oldest), oldestNames)
	name("align", uint8(in.Align), alignNames)
	given("time_zone", in.TimeZone != nil)
	number("max_log_entries", in.MaxLogEntries, 1_000_000)
	name("charge_denied", uint8(in.ChargeDenied), chargeDeniedNames)
	return errors.Join(append(errs, foreign...)...)
}

// ErrInvalid is wrapped by the error of a Store that was asked what no store can decide: it is the caller's mistake,
// and nothing was charged.
var ErrInvalid = errors.New("invalid hits")
