package decide

import (
	"context"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Outcome is the result of one hit.
type Outcome uint8

// The outcomes.
const (
	Allowed          Outcome = iota // the hit fits and was charged
	Uncharged                       // the hit was not charged because another limit denied the request
	Denied                          // the hit does not fit and denied the request
	ShadowDenied                    // the hit does not fit; in shadow mode, it does not deny
	QuotaOver                       // the hit does not fit; in quota mode, it did not deny the request
	AllowedOnFailure                // the store failed, and the limit fails open
	DeniedOnFailure                 // the store failed, and the limit fails closed
	AllowedLocally                  // the store failed, and the hit fits the share of this process
	DeniedLocally                   // the store failed, and the hit does not fit the share of this process
)

var outcomeNames = [...]string{
	"allowed", "uncharged", "denied", "shadow_denied", "quota_over", "allowed_on_failure", "denied_on_failure",
	"allowed_locally", "denied_locally",
}

// Outcomes returns all outcomes, in order: Outcomes()[o] == o.
func Outcomes() []Outcome {
	all := make([]Outcome, len(outcomeNames))
	for i := range all {
		all[i] = Outcome(i)
	}
	return all
}

// String returns the outcome as a metric's label.
func (o Outcome) String() string { return outcomeNames[o] }

// Unfit reports whether the hit did not fit. The request may have passed because of the limit's mode.
func (o Outcome) Unfit() bool {
	switch o {
	case Denied, ShadowDenied, QuotaOver, DeniedOnFailure, DeniedLocally:
		return true
	default:
		return false
	}
}

// Observer counts decisions. Its methods run while a request waits, so they must be quick and safe for concurrent use.
type Observer interface {
	// Decided reports one hit on limit l: its outcome, its cost in hits (0 peeks, below 0 refunds) and the store's
	// decision. The decision is meaningless while the store fails, and valid only during the call. It is not called for
	// limits that were not queried because the request had already been denied. The limit that a request itself carries
	// names the rule that the request matched, if any.
	Decided(l *descriptors.Limit, o Outcome, hits int64, d *limiter.Decision)
	// Answered reports a decided request: its domain (nil if the domain has no rules), and whether the request is denied.
	Answered(domain *descriptors.Domain, denied bool)
	// Ended reports the end of a request that was charged for limit l, whose reservation may have been removed since: the
	// hits that were charged at the start, 0 if the end has no token of l, and the real cost in hits.
	Ended(l *descriptors.Limit, charged, spent int64)
	// NotEnded reports an end on limit l that was lost because the store failed.
	NotEnded(l *descriptors.Limit)
	// StoreFailed reports that failure policies decided a request.
	StoreFailed(err error)
}

// Watcher sees whole requests, for busiest keys and traces; an Observer counts single limits. Watch is called once per
// decided request, before the response. It must be quick, must not block, and must be safe for concurrent use. The
// verdict is valid only during the call.
type Watcher interface {
	Watch(ctx context.Context, v *Verdict)
}

type unobserved struct{}

func (unobserved) Decided(*descriptors.Limit, Outcome, int64, *limiter.Decision) {}
func (unobserved) Answered(*descriptors.Domain, bool)                            {}
func (unobserved) Ended(*descriptors.Limit, int64, int64)                        {}
func (unobserved) NotEnded(*descriptors.Limit)                                   {}
func (unobserved) StoreFailed(error)                                             {}

// Outcome returns the outcome of hit i.
func (v *Verdict) Outcome(i int) Outcome {
	h, fits := &v.Hits[i], v.Decisions[i].Allowed
	switch {
	case v.isEnd(i):
		return Allowed
	case v.Failed():
		return failureOutcome(v.isLocal(i), fits)
	case v.unasked(i), fits && v.Denied && h.N > 0 && h.Mode != limiter.Shadow && !h.ByItself:
		return Uncharged
	case fits:
		return Allowed
	case h.Mode == limiter.Shadow:
		return ShadowDenied
	case v.Denies(i):
		return Denied
	default:
		return QuotaOver
	}
}

func failureOutcome(isLocal, fits bool) Outcome {
	switch {
	case isLocal && fits:
		return AllowedLocally
	case isLocal:
		return DeniedLocally
	case fits:
		return AllowedOnFailure
	default:
		return DeniedOnFailure
	}
}
