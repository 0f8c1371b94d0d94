package limiter

// A request whose hits lie in places that cannot be decided in one step, such as the slots of a Redis Cluster, is
// decided as Decide does in two. First each place charges what TryCharge says, where it fits. If the request turns out
// to be denied, each place undoes that and charges what DeniedCharge says. In between, others see counters that hold
// more than they will: so nobody is admitted who should not be, and somebody may be denied who need not.

// Charge says what a hit takes of its counter.
type Charge = charge

// The values of Charge.
const (
	ChargeIfFits    = takeIfFits    // its cost, if it fits
	ChargeOrPenalty = takeOrPenalty // its cost if it fits, else the policy's ChargeDenied
	ChargePenalty   = penalty       // the policy's ChargeDenied
	ChargeNothing   = look
)

// TryCharge is what the hit is charged before it is known whether its request is admitted.
func TryCharge(h *Hit) Charge {
	if h.Mode == Shadow {
		return ChargeOrPenalty
	}
	return ChargeIfFits
}

// DeniedCharge is what the hit of a denied request is charged. allowed is its own decision; quotaDenies is
// QuotaDenies of the request.
func DeniedCharge(h *Hit, allowed, quotaDenies bool) Charge {
	switch {
	case h.Mode == Shadow || h.N < 0:
		return ChargeOrPenalty
	case !allowed && (h.Mode == Enforce || quotaDenies):
		return ChargePenalty
	}
	return ChargeNothing
}

// TellDenied completes out[i], the decision of TryCharge on a hit of a denied request, by the one of DeniedCharge:
// Allowed stays; what is left is told as it really is, and a wait is as long as what the denial was charged makes it.
func TellDenied(hits []Hit, i int, out []Decision, denied *Decision) {
	out[i].Remaining, out[i].ResetAfter, out[i].Wait = denied.Remaining, denied.ResetAfter, denied.Wait
	if !out[i].Allowed {
		out[i].RetryAfter = max(out[i].RetryAfter, denied.RetryAfter)
		if together(hits, i) > hits[i].Policy.Largest() {
			out[i].RetryAfter = Never
		}
	}
}
