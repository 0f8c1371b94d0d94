package descriptors

import (
	"cmp"
	"fmt"
	"time"

	"github.com/weir-ratelimit/weir/internal/calendar"
	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Override returns the limit for a request that carries its own `limit`: the rule's first limit with the given rate.
// Algorithm, other parameters, name, replaces, Mode and ID are those of the rule's limit (envoyproxy/ratelimit drops
// the name and shadow_mode), with these exceptions:
//
// Burst and max_cost are the defaults for the rate, so that every rate fills the counter within the window, and no
// request forgets hits of another rate. A window that no calendar has, such as a minute, is aligned to the epoch. A
// reservation is reduced to the capacity. Consistency is strict. With `scope: regions`, the rate is divided. A rule
// without limits, or an unlimited rule, gets a fixed_window with ID -1.
//
// Requests with the same window share a counter, so that a client keeps its hits if its rate changes. If the rule's
// first limit has the same window, and its burst and max_cost are the defaults, they share its counter.
//
// The error names a parameter of the rule that does not fit the rate.
func (r *Rule) Override(requestsPerUnit uint32, window time.Duration) (*Limit, error) {
	if r.IsTooLong() {
		return r.Limits[0], nil
	}
	l := &Limit{
		ID: -1, Replaces: r.Replaces, OnStoreFailure: r.process.OnStoreFailure,
		params: &limiter.Params{Algorithm: limiter.FixedWindow, PeekAtLimit: r.process.PeekAtLimit},
	}
	if len(r.Limits) > 0 {
		*l = *r.Limits[0]
	}
	params := *l.params
	params.Burst, params.MaxCost, params.Reserve = 0, 0, 0
	l.Rule, l.params = r, &params
	l.params.Limit, l.params.DenyAll = int64(requestsPerUnit), requestsPerUnit == 0
	placement := l.Placement()
	unit, multiplier := UnitOf(window)
	placement.LeaseFor, placement.Store = 0, r.process.store(placement.Store, unit, int64(multiplier))
	if placement != l.Placement() {
		l.placement = placement.route()
	}
	if !l.params.Algorithm.CountsInFlight() { // the window of concurrency is its lease
		l.params.Window = window
	}
	if l.params.Align == limiter.AlignCalendar && !calendar.Has(window) {
		l.params.Align, l.params.TimeZone = limiter.AlignEpoch, nil
	}
	var err error
	if placement.Regions {
		whole := params
		whole.SegmentCap = 0 // already divided
		whole, err = limit.Part(whole, r.process.percent())
		params.Limit = whole.Limit
	}
	if err == nil {
		l.Policy, err = placement.newPolicy(params)
	}
	if err == nil && l.Reservation != nil {
		err = l.reserve(&placement)
	}
	if err == nil {
		err = l.share()
	}
	if err != nil {
		return nil, fmt.Errorf("limit of %d requests per %s on %s (%s): %w",
			requestsPerUnit, FormatDuration(window), r.Path, l.params.Algorithm, err)
	}
	l.Unit, l.UnitMultiplier = unit, multiplier
	if len(r.Limits) > 0 && l.params.Window == r.Limits[0].params.Window && fillsInWindow(r.Limits[0].params) {
		return l, nil // with the key of the rule's limit
	}
	which := newCounter(l.params, &placement)
	which.window, which.own = l.params.Window, true
	l.keyStart = which.keyStart(r.Domain)
	return l, nil
}

// fillsInWindow reports whether burst and max_cost are the defaults for the rate.
func fillsInWindow(p *limiter.Params) bool {
	return (p.Burst == 0 || p.Burst == p.Limit) && (p.MaxCost == 0 || p.MaxCost == p.Limit)
}

// Override calls Rule.Override. If r is nil, it returns a fixed_window of the domain.
func (d *Domain) Override(r *Rule, requestsPerUnit uint32, window time.Duration) (*Limit, error) {
	return cmp.Or(r, d.own).Override(requestsPerUnit, window)
}
