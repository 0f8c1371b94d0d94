package decide

import (
	"context"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Outcome is what became of one hit.
type Outcome uint8

// The outcomes.
const (
	Allowed          Outcome = iota // it fits, and was charged
	Uncharged                       // nothing was charged, since another limit denied the request
	Denied                          // it does not fit, and denied the request
	ShadowDenied                    // it does not fit, in shadow mode: the request passes
	QuotaOver                       // it does not fit, in quota mode, and did not deny the request
	AllowedOnFailure                // the store failed, and the limit fails open
	DeniedOnFailure                 // the store failed, and the limit fails closed
	AllowedLocally                  // the store failed, and it fits this process's share
	DeniedLocally                   // the store failed, and it does not fit this process's share
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

// Unfit reports that the limit did not fit: it denied the request, or would have but for its mode.
func (o Outcome) Unfit() bool {
	switch o {
	case Denied, ShadowDenied, QuotaOver, DeniedOnFailure, DeniedLocally:
		return true
	default:
		return false
	}
}

// Observer counts decisions. Its methods are called while a request waits: they must be quick and safe for concurrent
// use.
type Observer interface {
	// Decided reports one limit's part in a request, unless the limit was not asked since another one denied the request
	// before: its cost in hits (0 looks, below 0 refunds) and the store's answer. The answer means nothing while the
	// store fails, and is valid only during the call. A limit that a request brought along has the rule that it matched,
	// if any.
	Decided(l *descriptors.Limit, o Outcome, hits int64, d *limiter.Decision)
	// Answered reports a request that was decided: its domain, nil if that has no rules, and whether it is denied.
	Answered(domain *descriptors.Domain, denied bool)
	// StoreFailed reports that failure policies decide a request.
	StoreFailed(err error)
}

// Watcher sees whole requests, where an Observer counts their limits: for busiest keys and traces.
// Watch is called once for each request that was decided, before it is answered. It must be quick, must not block, and
// must be safe for concurrent use. The verdict is valid only during the call.
type Watcher interface {
	Watch(ctx context.Context, v *Verdict)
}

type unobserved struct{}

func (unobserved) Decided(*descriptors.Limit, Outcome, int64, *limiter.Decision) {}
func (unobserved) Answered(*descriptors.Domain, bool)                            {}
func (unobserved) StoreFailed(error)                                             {}

// observe shows the verdict to the Observer and the Watchers.
func (d *Decider) observe(ctx context.Context, v *Verdict) {
	d.o.Observer.Answered(v.Domain, v.Denied)
	for i, l := range v.Limits {
		if !v.unasked(i) {
			d.o.Observer.Decided(l, v.Outcome(i), v.Hits[i].N, &v.Decisions[i])
		}
	}
	for _, w := range d.o.Watchers {
		w.Watch(ctx, v)
	}
}

// Outcome is what became of hit i.
func (v *Verdict) Outcome(i int) Outcome {
	h, fits := &v.Hits[i], v.Decisions[i].Allowed
	switch {
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
