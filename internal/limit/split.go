package limit

import (
	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// A request whose hits are in several stores, or in several slots of a Redis Cluster, is decided in two steps, with the
// result of storekit.Decide. First, each store applies TryCharge. If the request is then admitted, the quotas that it
// exceeds are charged step.Spend. If it is denied, each store takes back its charge and applies DeniedCharge. Between
// the two steps the counters hold too much, so other requests may be denied.

// ByItself reports whether each hit of the request is charged independently of the others (Hit.ByItself). Such a
// request needs only one step, even in several stores.
func ByItself(hits []limiter.Hit) bool {
	for i := range hits {
		if hits[i].ByItself {
			return true
		}
	}
	return false
}

// TryCharge returns the charge of the hit before it is known whether the request is admitted.
func TryCharge(h *limiter.Hit) step.Charge {
	if h.Mode == limiter.Shadow {
		return step.OrPenalty
	}
	return step.IfFits
}

// Spends reports whether a hit of an admitted request is charged step.Spend after all other hits, because its quota has
// no room for it, while another quota has room. So a large cost uses up the quota, even with ChargeNone. With a
// Reserve, the hit is not charged, because the end of the request could not correct a part of its cost.
func Spends(h *limiter.Hit, allowed bool) bool {
	return h.Mode == limiter.Quota && !allowed && h.Policy.Core().Reserve == 0
}

// CompleteSpent updates out, the decision of TryCharge on a hit that Spends, with the decision of step.Spend.
func CompleteSpent(out, spent *limiter.Decision) {
	out.Remaining, out.ResetAfter = spent.Remaining, spent.ResetAfter
	if !spent.Allowed {
		out.RetryAfter = spent.RetryAfter
	}
}

// DeniedCharge returns the charge of a hit of a denied request. quotaDenies is limiter.QuotaDenies of the request.
func DeniedCharge(h *limiter.Hit, allowed, quotaDenies bool) step.Charge {
	switch {
	case h.Mode == limiter.Shadow || h.N < 0:
		return step.OrPenalty
	case !allowed && (h.Mode == limiter.Enforce || quotaDenies):
		return step.Penalty
	}
	return step.Nothing
}

// CompleteDenied updates out, the decision of TryCharge on a hit of a denied request, with denied, the decision of
// DeniedCharge. Allowed stays as it is. The other values become the values after DeniedCharge. together is the total
// cost of the request's hits with the same key, up to and including this hit.
func CompleteDenied(h *limiter.Hit, together int64, out, denied *limiter.Decision) {
	out.Remaining, out.ResetAfter, out.Wait, out.TakenAt = denied.Remaining, denied.ResetAfter, denied.Wait, denied.TakenAt
	if !out.Allowed {
		out.RetryAfter = max(out.RetryAfter, denied.RetryAfter)
		if together > h.Policy.Core().Largest {
			out.RetryAfter = limiter.Never
		}
	}
}
