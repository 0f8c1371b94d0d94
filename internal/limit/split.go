package limit

import (
	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// A request whose hits lie in several stores, or in several slots of a Redis Cluster, is decided as Decide does in two
// steps. First each store charges what TryCharge says, where it fits. If the request turns out to be admitted, the
// quotas that it exceeds are charged step.Spend. If it turns out to be denied, each store takes its charge back and
// charges what DeniedCharge says. In between, others find counters that hold more than they will, and may be denied for
// that.

// ByItself reports whether each hit of the request is charged by itself (Hit.ByItself). Such a request needs one step
// only, wherever its hits lie: nothing depends on what the others are answered.
func ByItself(hits []limiter.Hit) bool {
	for i := range hits {
		if hits[i].ByItself {
			return true
		}
	}
	return false
}

// TryCharge is what the hit is charged before it is known whether its request is admitted.
func TryCharge(h *limiter.Hit) step.Charge {
	if h.Mode == limiter.Shadow {
		return step.OrPenalty
	}
	return step.IfFits
}

// Spends says whether a hit of a request that is admitted is charged step.Spend after all other hits. allowed is its
// own decision. A quota hit that does not fit passes where another quota has room: it is used then, whatever
// ChargeDenied says of requests that are denied, so that a large cost exhausts it.
func Spends(h *limiter.Hit, allowed bool) bool { return h.Mode == limiter.Quota && !allowed }

// CompleteSpent completes out, the decision of TryCharge on a hit that Spends, by the one of step.Spend.
func CompleteSpent(out, spent *limiter.Decision) {
	out.Remaining, out.ResetAfter = spent.Remaining, spent.ResetAfter
	if !spent.Allowed {
		out.RetryAfter = spent.RetryAfter
	}
}

// DeniedCharge is what the hit of a denied request is charged. allowed is its own decision; quotaDenies is
// QuotaDenies of the request.
func DeniedCharge(h *limiter.Hit, allowed, quotaDenies bool) step.Charge {
	switch {
	case h.Mode == limiter.Shadow || h.N < 0:
		return step.OrPenalty
	case !allowed && (h.Mode == limiter.Enforce || quotaDenies):
		return step.Penalty
	}
	return step.Nothing
}

// CompleteDenied completes out, the decision of TryCharge on a hit of a denied request, by denied, the one of
// DeniedCharge: Allowed stays; what remains is what really does, and a wait is as long as what the denial was charged
// makes it. together is what the request's hits of the same key cost, up to and with this one.
func CompleteDenied(h *limiter.Hit, together int64, out, denied *limiter.Decision) {
	out.Remaining, out.ResetAfter, out.Wait = denied.Remaining, denied.ResetAfter, denied.Wait
	out.TakenAt = denied.TakenAt
	if !out.Allowed {
		out.RetryAfter = max(out.RetryAfter, denied.RetryAfter)
		if together > h.Policy.Core().Largest {
			out.RetryAfter = limiter.Never
		}
	}
}
