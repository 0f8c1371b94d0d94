// Package limit has functions on the hits and policies of package limiter that only packages of Weir need.
package limit

import (
	"errors"
	"fmt"
	"time"

	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// StoreName returns the name of the store in the hit's Route, or "" for the first store.
func StoreName(h *limiter.Hit) string {
	if r, ok := h.Route.(interface{ StoreName() string }); ok {
		return r.StoreName()
	}
	return ""
}

// UsesRedisCell reports whether the hit's Route lets the redis-cell module decide the hit.
func UsesRedisCell(h *limiter.Hit) bool {
	r, ok := h.Route.(interface{ UsesRedisCell() bool })
	return ok && r.UsesRedisCell()
}

// CountsInFlight reports whether the hit counts as in flight from its admission until it is released.
func CountsInFlight(h *limiter.Hit) bool { return h.N > 0 && h.Policy.Core().Is(step.InFlight) }

// MaxTakenAt is the largest limiter.Hit.TakenAt, in microseconds since the Unix epoch. A script can add a lease to it.
const MaxTakenAt = step.Horizon - 1

// Owes appends to dst the hits that return what a request holds until its end: requests in flight and, if estimates is
// true, charges of policies with a Reserve. Take them if the request will not report its end.
func Owes(dst, hits []limiter.Hit, out []limiter.Decision, estimates bool) []limiter.Hit {
	for i := range hits {
		isInFlight := CountsInFlight(&hits[i])
		if at := out[i].TakenAt; at != 0 && (isInFlight || estimates) { // the hit was charged
			h := hits[i]
			h.N, h.Mode, h.TakenAt, h.OrOldest = -h.N, limiter.Enforce, at, isInFlight
			dst = append(dst, h)
		}
	}
	return dst
}

// Stamp sets the TakenAt of the hits that were charged to a policy with a Reserve: the time at which the charge no
// longer counts. at returns the time of the policy's decisions, in microseconds since the Unix epoch. all reports that
// every hit that fits was charged; otherwise only hits in Mode Shadow were, because the request is denied.
func Stamp(hits []limiter.Hit, out []limiter.Decision, at func(*limiter.Policy) int64, all bool) {
	for i := range hits {
		h, d := &hits[i], &out[i]
		if h.N > 0 && h.Policy.Core().Reserve > 0 && d.Allowed && (all || h.Mode == limiter.Shadow) {
			d.TakenAt = min(at(h.Policy)+d.ResetAfter.Microseconds(), MaxTakenAt)
		}
	}
}

// Bound returns the maximum number of hits that can pass in any period of the policy's Window, if no request costs more
// than maxCost hits. A calendar window that is shorter than Window adds Limit.
func Bound(p *limiter.Policy, maxCost int64) int64 {
	bound := p.Limit() + p.Core().Extra
	if p.Core().Overshoots {
		bound += maxCost - 1
	}
	return bound
}

// Counter returns the content of the limit's counter after a decision, in hits, and the algorithm's name for it:
// "count", "level", "tokens", "stored", "queued" or "in_use". The name is "" if the decision does not show the content.
func Counter(p *limiter.Policy, d *limiter.Decision) (name string, hits int64) {
	c := p.Core()
	switch {
	case c.Partial:
		return "", 0
	case c.Is(step.ShowsLeft):
		return c.Counter, d.Remaining
	default:
		return c.Counter, max(0, c.Capacity-d.Remaining)
	}
}

// Edges returns the numbers that follow Args in a policy for the Lua step: see step.Dated. It is nil for most policies.
func Edges(p *limiter.Policy, now int64) []int64 {
	if dated, ok := p.Core().Algorithm.(step.Dated); ok {
		return dated.Edges(now)
	}
	return nil
}

// Identity returns a comparable value that is equal for policies that decide alike. Time zones are equal if they have
// the same name, even if they were loaded separately.
func Identity(p *limiter.Policy) any {
	numbers, zone := p.Params(), p.Params().TimeZone.String() // nil is UTC
	numbers.TimeZone, numbers.MaxLogEntries = nil, 0
	return struct {
		numbers limiter.Params
		zone    string
	}{numbers, zone}
}

// Share returns the policy of one of n shares of the limit, each with a separate counter. Together, the shares admit at
// most as much as the limit, or n hits if the limit is less than n, because each share admits at least one hit.
//
// For a rate (Funnel, LeakyQueue and similar), Share multiplies the Window by n and divides the Burst. For other
// limits, and if the slower rate cannot be counted exactly, it divides the numbers of hits. Quotients are rounded down.
// If the result is not a valid policy, the share is a FixedWindow. An error means that the parameters in are invalid.
func Share(in limiter.Params, n int64) (*limiter.Policy, error) {
	whole, err := limiter.NewPolicy(in)
	if err != nil || n <= 1 {
		return whole, err
	}
	if whole.Core().Is(step.IsRate) && in.Limit > 0 && !in.RefillsAtOnce {
		slower := in
		slower.Window *= time.Duration(min(n, 1+int64(step.MaxWindow/in.Window))) // if too long, NewPolicy returns an error
		slower.Burst = part(whole.Params().Burst, n)
		if p, err := limiter.NewPolicy(slower); err == nil {
			return p, nil
		}
	}
	in.Limit, in.Burst, in.SegmentCap = part(in.Limit, n), part(in.Burst, n), part(in.SegmentCap, n)
	if p, err := limiter.NewPolicy(in); err == nil {
		return p, nil
	}
	return limiter.NewPolicy(limiter.Params{
		Algorithm: limiter.FixedWindow, Limit: in.Limit, DenyAll: in.DenyAll, Window: in.Window,
		ChargeDenied: in.ChargeDenied,
	})
}

// leastPart is the minimum of each number of hits in a Part. A smaller number would lose too much by rounding.
const leastPart = 10

// Part returns the parameters of a part of the limit, in percent, which has a separate counter. Parts of at most 100
// percent together never admit more than the limit, because each number of hits is rounded down. The error wraps a
// *limiter.ParamError if the limit is invalid, if it may admit a request beyond its rate, or if the part is too small.
func Part(in limiter.Params, percent int64) (limiter.Params, error) {
	whole, err := limiter.NewPolicy(in)
	if err != nil {
		return in, err
	}
	if whole.Core().Overshoots {
		return in, &limiter.ParamError{Param: "algorithm", Msg: fmt.Sprintf("with scope: regions, each region could admit a "+
			"request beyond its part of %s; use another algorithm, such as funnel", in.Algorithm)}
	}
	for _, n := range []struct {
		name string
		hits *int64
	}{{"limit", &in.Limit}, {"burst", &in.Burst}, {"segment_cap", &in.SegmentCap}} {
		all := *n.hits
		if *n.hits = all * percent / 100; all != 0 && *n.hits < leastPart {
			err = errors.Join(err, &limiter.ParamError{Param: n.name, Msg: fmt.Sprintf("%d%% of %d is %d, but the part of a "+
				"region must be at least %d; write more, or store: NAME instead of scope: regions, to count in one place",
				percent, all, *n.hits, leastPart)})
		}
	}
	return in, err
}

// part returns v/n, but at least 1; 0 if v is 0.
func part(v, n int64) int64 {
	if v == 0 {
		return 0
	}
	return max(1, v/n)
}
