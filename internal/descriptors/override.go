package descriptors

import (
	"cmp"
	"fmt"
	"time"

	"github.com/weir-ratelimit/weir/internal/calendar"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Override returns the limit that a request's own `limit` makes of the rule: the rule's first limit with this rate
// instead of its own. Requests with the same window have one counter, whatever their rate, so that a client whose rate
// changes keeps what it used; if the window is that of the rule's first limit, it is that limit's counter. The rule's
// burst and max_cost do not hold, but those that follow from the rate: so all rates of one counter fill up in one time,
// the window, and none forgets what another one has counted. A limit whose own burst fills up in another time keeps its
// counter for itself. All else stays as the rule has it: algorithm, other parameters, name, replaces, and Mode (where
// envoyproxy/ratelimit forgets shadow_mode and the name). A rule without limits, or an unlimited one, gets a
// fixed_window. A window that is not on the calendar, such as a minute, is aligned to the epoch. It is strict, also
// where the rule is leased. The limit's ID is that of the limit that it stands for, -1 if there is none.
//
// The error says which of the rule's parameters does not go with the rate.
func (r *Rule) Override(requestsPerUnit uint32, window time.Duration) (*Limit, error) {
	if r.IsTooLong() {
		return r.Limits[0], nil
	}
	l := &Limit{
		ID: -1, Replaces: r.Replaces, OnStoreFailure: r.process.OnStoreFailure,
		params: &limiter.Params{Algorithm: limiter.FixedWindow, LookAtLimit: r.process.LookAtLimit},
	}
	if len(r.Limits) > 0 {
		*l = *r.Limits[0]
	}
	params := *l.params
	params.Burst, params.MaxCost = 0, 0
	l.Rule, l.params = r, &params
	l.params.Limit, l.params.DenyAll = int64(requestsPerUnit), requestsPerUnit == 0
	placement := l.Placement()
	unit, multiplier := UnitOf(window)
	placement.LeaseFor, placement.Store = 0, r.process.store(placement.Store, unit, int64(multiplier))
	if placement != l.Placement() {
		l.placement = placement.route()
	}
	if !l.params.Algorithm.CountsInFlight() { // whose window is its lease
		l.params.Window = window
	}
	if l.params.Align == limiter.AlignCalendar && !calendar.Has(window) {
		l.params.Align, l.params.TimeZone = limiter.AlignEpoch, nil
	}
	policy, err := placement.newPolicy(params)
	if l.Policy = policy; err == nil {
		err = l.share()
	}
	if err != nil {
		return nil, fmt.Errorf("limit of %d requests per %s on %s (%s): %w",
			requestsPerUnit, FormatDuration(window), r.Path, l.params.Algorithm, err)
	}
	l.Unit, l.UnitMultiplier = unit, multiplier
	if len(r.Limits) > 0 && l.params.Window == r.Limits[0].params.Window && fillsInWindow(r.Limits[0].params) {
		return l, nil // and its key
	}
	which := newCounter(l.params, &placement)
	which.window, which.own = l.params.Window, true
	l.keyStart = which.keyStart(r.Domain)
	return l, nil
}

// fillsInWindow reports whether the burst and the largest cost are those that follow from the rate.
func fillsInWindow(p *limiter.Params) bool {
	return (p.Burst == 0 || p.Burst == p.Limit) && (p.MaxCost == 0 || p.MaxCost == p.Limit)
}

// Override is Rule.Override, or a fixed_window of the domain's own if there is no rule.
func (d *Domain) Override(r *Rule, requestsPerUnit uint32, window time.Duration) (*Limit, error) {
	return cmp.Or(r, d.own).Override(requestsPerUnit, window)
}
