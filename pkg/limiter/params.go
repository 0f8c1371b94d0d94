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
	// Param is the parameter's name in rule files, such as "burst", or "limit" of Limit.
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

// parameters is the table of what limits have besides Limit, DenyAll and Window. A further one is a field of Params and
// a row here; the algorithms that take it name it in their lines of the other table.
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

// Parameters returns the parameters that the algorithm takes besides its rate; all that there are for no algorithm. It
// is for the packages of this module.
func (a Algorithm) Parameters() (all []step.Parameter[Params]) {
	for _, p := range parameters {
		if a == 0 || a.Takes(p.Name) {
			all = append(all, p)
		}
	}
	return all
}

// Takes reports whether the algorithm has the parameter of that name in rule files.
func (a Algorithm) Takes(parameter string) bool {
	return parameter == "charge_denied" || a.known() && slices.Contains(strings.Fields(algorithms[a].params), parameter)
}

// validate checks each parameter by itself, and that the algorithm takes those that are given.
func (in *Params) validate() error {
	var errs, foreign []error
	bad := func(param, format string, args ...any) { errs = append(errs, paramError(param, format, args...)) }
	switch {
	case in.Limit < 0 || in.Limit > step.MaxLimit:
		bad("limit", "must be between 0 and %d, got %d", int64(step.MaxLimit), in.Limit)
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
	for i := range parameters {
		p := &parameters[i]
		v := p.Get(in)
		switch {
		case v == 0 || p.Name == "lease": // the window
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

// ErrInvalid is wrapped by the error of a Store that was asked what no store can decide: it is the caller's mistake,
// and nothing was charged.
var ErrInvalid = errors.New("invalid hits")
