// Package limit is what Weir's own packages know of hits and policies, and users of package limiter do not.
package limit

import (
	"time"

	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// StoreName returns what the hit's Route calls the store that has its counter, empty for the first one.
func StoreName(h *limiter.Hit) string {
	if r, ok := h.Route.(interface{ StoreName() string }); ok {
		return r.StoreName()
	}
	return ""
}

// UsesRedisCell reports whether the hit's Route has the redis-cell module decide.
func UsesRedisCell(h *limiter.Hit) bool {
	r, ok := h.Route.(interface{ UsesRedisCell() bool })
	return ok && r.UsesRedisCell()
}

// CountsInFlight reports whether the hit counts as in flight, once it is admitted, until it is given back.
func CountsInFlight(h *limiter.Hit) bool { return h.N > 0 && h.Policy.Core().Is(step.InFlight) }

// Owes appends to dst the hits that give back what a request with these decisions holds for as long as it runs: what
// counts as in flight. Take them when nobody will report the request's end.
func Owes(dst, hits []limiter.Hit, out []limiter.Decision) []limiter.Hit {
	admitted := ByItself(hits) || limiter.Admitted(hits, out)
	for i := range hits {
		h := hits[i]
		if !CountsInFlight(&h) || !out[i].Allowed || !admitted && h.Mode != limiter.Shadow {
			continue
		}
		h.N, h.Mode, h.TakenAt, h.OrOldest = -h.N, limiter.Enforce, out[i].TakenAt, true
		dst = append(dst, h)
	}
	return dst
}

// Bound returns the most hits that can pass in any time as long as the policy's Window if no request costs more than
// dearest hits, whatever the traffic. A calendar's window that is shorter than Window adds Limit.
func Bound(p *limiter.Policy, dearest int64) int64 {
	bound := p.Limit() + p.Core().Extra
	if p.Core().Overshoots {
		bound += dearest - 1
	}
	return bound
}

// Counter returns what the limit's counter holds after a decision, in hits, and what the algorithm calls that: "count",
// "level", "tokens", "stored", "queued" or "in_use". The name is empty where the decision does not tell.
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

// Edges returns the numbers that follow Args for the Lua twin of the policy's step: see step.Dated.
func Edges(p *limiter.Policy, now int64) []int64 {
	if dated, ok := p.Core().Algorithm.(step.Dated); ok {
		return dated.Edges(now)
	}
	return nil
}

// Identity can be compared: it is equal for policies that decide alike, also if their time zone was loaded separately.
// It compares time zones by their names.
func Identity(p *limiter.Policy) any {
	numbers, zone := p.Params(), p.Params().TimeZone.String() // of nil, too, which is UTC
	numbers.TimeZone, numbers.MaxLogEntries = nil, 0
	return struct {
		numbers limiter.Params
		zone    string
	}{numbers, zone}
}

// Share returns the policy of one of n parts of the limit, each with a counter of its own. All n together let pass what
// the limit does, or n hits where that is less, since a share lets at least one pass.
//
// A limit that is a rate (Funnel, LeakyQueue and their like) is n times slower, over a burst that is divided; one that
// counts in windows gets a part of the number, and so does a rate that cannot be counted exactly n times slower. A part
// is rounded down. What can be counted in neither way becomes a FixedWindow. The error is of Params that are no policy
// by themselves.
func Share(in limiter.Params, n int64) (*limiter.Policy, error) {
	whole, err := limiter.NewPolicy(in)
	if err != nil || n <= 1 {
		return whole, err
	}
	if whole.Core().Is(step.IsRate) && in.Limit > 0 && !in.RefillsAtOnce {
		slower := in
		slower.Window *= time.Duration(min(n, 1+int64(step.MaxWindow/in.Window))) // may be longer than a policy's can be
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

// part is the n-th part of v, at least 1, or 0 of 0.
func part(v, n int64) int64 {
	if v == 0 {
		return 0
	}
	return max(1, v/n)
}
