package limiter

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Bounds of a policy's numbers.
const (
	MaxLimit      = MaxHits                   // hits; large ones need round rates: see NewPolicy
	MaxCost       = math.MaxUint32            // hits, of algorithms by which later requests pay for a large one
	MinWindow     = time.Millisecond          // shortest window
	MaxWindow     = 10 * 365 * 24 * time.Hour // longest window
	MaxSegments   = 1000                      // of a sliding window
	MaxColdFactor = 100 * 100                 // hundredths
	MaxLogEntries = 10_000                    // default bound of a sliding log's limit
	DefaultLease  = time.Minute               // for rules that name none: Envoy's own route timeout is 15 s
	MaxWait       = time.Hour                 // longest max_wait, longest burst_seconds, and longest warm_up
)

// Params are a limit's parameters. A zero value stands for the default.
type Params struct {
	Algorithm Algorithm
	// Limit is how many hits may pass per Window: N. 0 denies always.
	Limit int64
	// Window is the time W that Limit is counted over. Of Concurrency it is the lease: how long a hit that is
	// not refunded counts.
	Window time.Duration
	// Burst is the capacity C of Funnel and TokenBucket in hits, the most that may pass at once, and of
	// LeakyQueue, the most that may be queued. 0 is Limit.
	Burst int64
	// Initial is of TokenBucket and SmoothBursty, Refill of TokenBucket.
	Initial Initial
	Refill  Refill
	// MaxWait is the longest that LeakyQueue, SmoothBursty and SmoothWarmingUp hold a request back. 0 is Burst's time
	// to leak for LeakyQueue, and no wait for the others.
	MaxWait time.Duration
	// MaxCost is the largest cost of one request, in hits, of SmoothBursty and SmoothWarmingUp, which would admit any at
	// once and let the next ones pay for it. 0 is what the limit admits in as many whole windows as an hour has, in at
	// least one.
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
	// LookAtLimit is of FixedWindow; the others do not read it. A hit that only looks fits while no more than Limit is
	// counted, and not only while one more hit would, and a Limit of 0 counts, too.
	LookAtLimit bool
	// TimeZone is whose calendar AlignCalendar follows. nil is UTC.
	TimeZone *time.Location
	// MaxLogEntries is the largest Limit that SlidingLog and Concurrency accept. 0 is MaxLogEntries, the constant.
	MaxLogEntries int64
	// ChargeDenied is what a denied request takes.
	ChargeDenied ChargeDenied
}

// ParamError says which parameter of a policy is wrong, why, and what to write instead.
type ParamError struct {
	Param string // the field of Params in snake case: "burst_for" of BurstFor
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
		if v < 0 || v > MaxWait || v%time.Millisecond != 0 {
			bad(param, "must be whole milliseconds up to %s, got %s", MaxWait, v)
		}
	}
	name := func(param string, v uint8, name string, names []string) {
		given(param, v != 0)
		if name == "" {
			bad(param, "%d is not known: use one of %s", v, strings.Join(names, ", "))
		}
	}
	upTo("limit", in.Limit, MaxLimit)
	if in.Window < MinWindow || in.Window > MaxWindow {
		bad("window", "must be between %s and %s (10 years), got %s", MinWindow, MaxWindow, in.Window)
	} else if in.Window%time.Microsecond != 0 {
		bad("window", "must be a whole number of microseconds, got %s", in.Window)
	}
	number("burst", in.Burst, MaxLimit)
	name("initial", uint8(in.Initial), in.Initial.String(), names(initialNames))
	name("refill", uint8(in.Refill), in.Refill.String(), names(refillNames))
	wait("max_wait", in.MaxWait)
	number("max_cost", in.MaxCost, MaxCost)
	wait("burst_for", in.BurstFor)
	wait("warm_up", in.WarmUp)
	given("cold_factor", in.ColdFactor != 0)
	if f := in.ColdFactor; f != 0 && (f < 101 || f > MaxColdFactor) {
		bad("cold_factor", "must be between 1.01 and %d, got %g", MaxColdFactor/100, float64(f)/100)
	}
	number("segments", in.Segments, MaxSegments)
	number("segment_cap", in.SegmentCap, MaxLimit)
	name("oldest", uint8(in.Oldest), in.Oldest.String(), names(oldestNames))
	name("align", uint8(in.Align), in.Align.String(), names(alignNames))
	given("time_zone", in.TimeZone != nil)
	number("max_log_entries", in.MaxLogEntries, 1_000_000)
	if in.ChargeDenied != ChargeDefault {
		name("charge_denied", uint8(in.ChargeDenied), in.ChargeDenied.String(), names(chargeDeniedNames))
	}
	return errors.Join(append(errs, foreign...)...)
}

// ErrInvalid is wrapped by the error of a Store that was asked what no store can decide: it is the caller's mistake,
// and nothing was charged.
var ErrInvalid = errors.New("invalid hits")
