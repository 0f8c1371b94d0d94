package limiter

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/internal/step"
)

// Params are the parameters of a limit, as a function such as NewFunnel returns them. Set a field to replace its
// default: the zero value means the default, except for Algorithm, Limit and Window. NewPolicy rejects a parameter that
// the algorithm does not have.
type Params struct {
	Algorithm Algorithm
	// Limit is the number of hits that may pass per Window, N: 1 to 2^48. NewPolicy rejects a rate that it cannot count
	// exactly: a large Limit with many digits needs a Window of whole milliseconds or seconds.
	Limit int64
	// DenyAll denies every hit. Limit must then be 0.
	DenyAll bool
	// Window is the time W over which Limit is counted: 1 ms to 10 years, in whole microseconds. For Concurrency it is the
	// lease: the time after which a hit that was not refunded no longer counts.
	Window time.Duration
	// Burst is the capacity C in hits: for Funnel and TokenBucket the most that may pass at once, and for LeakyQueue the
	// most that may be queued. 0 means Limit.
	Burst int64
	// StartsEmpty makes TokenBucket and SmoothBursty start empty and fill from the first hit on. A bucket that has been
	// full for as long as filling takes starts empty again. In rule files it is `initial: empty`.
	StartsEmpty bool
	// RefillsAtOnce makes TokenBucket add Limit tokens at once every Window, counted from the first hit on a full bucket,
	// in place of continuously. In rule files it is `refill: interval`.
	RefillsAtOnce bool
	// MaxWait is the longest delay of a request by LeakyQueue, SmoothBursty and SmoothWarmingUp, up to an hour. 0 means
	// the time in which Burst hits leak for LeakyQueue, and no delay for SmoothBursty and SmoothWarmingUp.
	MaxWait time.Duration
	// MaxCost is the largest cost of a request, in hits, for SmoothBursty and SmoothWarmingUp, which admit a large request
	// at once and let later ones pay for it. It must be below 2^32. 0 means Limit times the whole Windows in an hour, at
	// least 1.
	MaxCost int64
	// BurstFor is the time for which SmoothBursty saves unused permits, up to an hour. 0 means 1 s.
	BurstFor time.Duration
	// WarmUp is the time that SmoothWarmingUp takes to rise from cold to its full rate under steady requests, and to
	// become cold without requests: up to an hour. 0 means 10 s.
	WarmUp time.Duration
	// ColdFactor is the price of SmoothWarmingUp's coldest hit in hundredths of a warm hit: 101 to 10,000. 0 means 300.
	ColdFactor int64
	// Segments is the number of segments S of a SlidingWindow, at most 1,000. 0 means 10.
	Segments int64
	// SegmentCap is the maximum number of hits that SlidingWindow admits in one segment. 0 means no such maximum.
	SegmentCap int64
	// Oldest sets how much of a SlidingWindow's oldest segment counts.
	Oldest Oldest
	// Align sets where the windows of FixedWindow begin. AlignCalendar requires a Window of one hour, day (24 h), week or
	// year (365 days), or of 1, 2, 3, 4 or 6 months of 30 days.
	Align Align
	// PeekAtLimit makes a peek on a FixedWindow fit while at most Limit hits are counted, in place of fewer than Limit. It
	// also makes a Limit of 0 count hits. Other algorithms ignore it.
	PeekAtLimit bool
	// TimeZone is the time zone of AlignCalendar. nil means UTC.
	TimeZone *time.Location
	// MaxLogEntries is the largest Limit that SlidingLog and Concurrency accept, up to 1,000,000. 0 means 10,000.
	MaxLogEntries int64
	// ChargeDenied sets what a denied request is charged.
	ChargeDenied ChargeDenied
	// Reserve is the largest cost of a request whose real cost is reported at its end, in hits, at most the capacity; 0
	// means that costs are final. With a Reserve, the Decision of a charge has a TakenAt, with which a refund takes back
	// that charge, and a Funnel or TokenBucket can owe Limit or Burst hits, whichever is more. It requires FixedWindow,
	// SlidingWindow, SlidingLog, Funnel or TokenBucket without StartsEmpty and RefillsAtOnce, and ChargeNone, its default,
	// or ChargeFull. A policy with ChargeFull is for the ends of requests, to charge costs above the estimates. Its own
	// charges are final. A Limit of 0 ignores Reserve.
	Reserve int64
}

// ParamError reports a wrong parameter of a policy. Msg says what is wrong, and what to write instead.
type ParamError struct {
	// Param is the parameter's name in rule files, such as "burst"; for Limit it is "limit".
	Param string
	Msg   string
}

// Error returns Param and Msg.
func (e *ParamError) Error() string { return e.Param + ": " + e.Msg }

func paramError(param, format string, args ...any) error {
	return &ParamError{Param: param, Msg: fmt.Sprintf(format, args...)}
}

// terms returns the parameters that all algorithms share.
func (in *Params) terms() terms {
	return terms{
		limit: in.Limit, window: in.Window.Microseconds(), denied: in.ChargeDenied, reserve: in.Reserve,
	}
}

// parameters is the table of the parameters, except Limit, DenyAll and PeekAtLimit. To add a parameter, add a field to
// Params and a row here, and name it in the rows of the algorithms that take it.
var parameters = []step.Parameter[Params]{
	{Name: "burst", Most: step.MaxLimit, At: func(p *Params) any { return &p.Burst }},
	{Name: "initial", Names: []string{"full", "empty"}, At: func(p *Params) any { return &p.StartsEmpty }},
	{Name: "refill", Names: []string{"greedy", "interval"}, At: func(p *Params) any { return &p.RefillsAtOnce }},
	{Name: "max_wait", Most: maxWait, Step: ms, At: func(p *Params) any { return &p.MaxWait }},
	{Name: "max_cost", Most: step.MaxCost, At: func(p *Params) any { return &p.MaxCost }},
	{Name: "burst_seconds", Most: maxWait, Step: ms, Scale: 1000 * ms, At: func(p *Params) any { return &p.BurstFor }},
	{Name: "warm_up", Most: maxWait, Step: ms, At: func(p *Params) any { return &p.WarmUp }},
	{
		Name: "cold_factor", Least: 101, Most: step.MaxColdFactor, Scale: 100,
		At: func(p *Params) any { return &p.ColdFactor },
	},
	{Name: "segments", Most: step.MaxSegments, At: func(p *Params) any { return &p.Segments }},
	{Name: "segment_cap", Most: step.MaxLimit, At: func(p *Params) any { return &p.SegmentCap }},
	{Name: "oldest", Names: oldestNames, At: func(p *Params) any { return &p.Oldest }},
	{Name: "align", Names: alignNames, At: func(p *Params) any { return &p.Align }},
	{Name: "time_zone", At: func(p *Params) any { return &p.TimeZone }},
	{Name: "lease", At: func(p *Params) any { return &p.Window }},
	{Name: "max_log_entries", Most: 1_000_000, At: func(p *Params) any { return &p.MaxLogEntries }},
	{Name: "charge_denied", Names: chargeDeniedNames, At: func(p *Params) any { return &p.ChargeDenied }},
}

const (
	ms      = int64(time.Millisecond)
	maxWait = int64(step.MaxWait)
)

// Parameters returns the parameters that the algorithm takes in addition to its rate. For the zero Algorithm it returns
// the parameters of all algorithms. It is for the packages of this module.
func (a Algorithm) Parameters() (all []step.Parameter[Params]) {
	for _, p := range parameters {
		if a == 0 || a.Takes(p.Name) {
			all = append(all, p)
		}
	}
	return all
}

// Takes reports whether the algorithm takes the parameter with this name in rule files.
func (a Algorithm) Takes(parameter string) bool {
	return parameter == "charge_denied" || a.known() && slices.Contains(strings.Fields(algorithms[a].params), parameter)
}

// validate checks each parameter separately, and that the algorithm takes it.
func (in *Params) validate() error {
	var errs, foreign []error
	bad := func(param, format string, args ...any) { errs = append(errs, paramError(param, format, args...)) }
	switch {
	case in.Limit < 0 || in.Limit > step.MaxLimit:
		bad("limit", "must be between 0 and %d, got %d", int64(step.MaxLimit), in.Limit)
	case in.Limit == 0 && !in.DenyAll:
		bad("limit", "is missing: set the number of hits per window, at least 1, or DenyAll to deny all")
	case in.Limit != 0 && in.DenyAll:
		bad("limit", "must be 0 with DenyAll, got %d", in.Limit)
	}
	if in.Window < step.MinWindow || in.Window > step.MaxWindow {
		bad("window", "must be between %s and %s (10 years), got %s", step.MinWindow, step.MaxWindow, in.Window)
	} else if in.Window%time.Microsecond != 0 {
		bad("window", "must be a whole number of microseconds, got %s", in.Window)
	}
	for i := range parameters {
		p := &parameters[i]
		v := p.Get(in)
		switch {
		case v == 0 || p.Name == "lease": // lease is the Window
			continue
		case p.Names != nil && v >= int64(len(p.Names)):
			bad(p.Name, "%d is not known: use one of %s", v, strings.TrimPrefix(strings.Join(p.Names, ", "), ", "))
		case p.Most != 0 && (v < p.Least || v > p.Most):
			bad(p.Name, "must be between %v and %v, got %v", p.Shown(p.Least), p.Shown(p.Most), p.Shown(v))
		case p.Step != 0 && v%p.Step != 0:
			bad(p.Name, "must be a multiple of %v, got %v", p.Shown(p.Step), p.Shown(v))
		}
		if !in.Algorithm.Takes(p.Name) {
			foreign = append(foreign, paramError(p.Name, "is not a parameter of %s, which takes %s",
				in.Algorithm, strings.Join(step.Names(in.Algorithm.Parameters()), ", ")))
		}
	}
	return errors.Join(append(errs, foreign...)...)
}

// checkReserve checks Reserve for a limit with the capacity.
func (in *Params) checkReserve(capacity int64) error {
	switch {
	case !in.Algorithm.Kind().Is(step.Prepayable):
		return paramError("reserve", "%s cannot take back a charge; use fixed_window, sliding_window, sliding_log, funnel "+
			"or token_bucket", in.Algorithm)
	case in.StartsEmpty || in.RefillsAtOnce:
		return paramError("reserve", "a token_bucket with initial: empty or refill: interval cannot take back a charge; "+
			"use initial: full and refill: greedy")
	case in.ChargeDenied == ChargeRemaining:
		return paramError("reserve", "a charge that was cut to the remaining hits cannot be corrected; use "+
			"charge_denied: none")
	case in.Reserve < 0 || in.Reserve > capacity:
		return paramError("reserve", "must be between 0 and the capacity, %d, got %d", capacity, in.Reserve)
	}
	return nil
}

// ErrInvalid is wrapped by the error of a Store whose caller passed invalid hits. Nothing was charged.
var ErrInvalid = errors.New("invalid hits")
