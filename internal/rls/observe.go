package rls

import (
	"google.golang.org/grpc/codes"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Outcome is what became of one hit.
type Outcome uint8

// The outcomes.
const (
	Allowed          Outcome = iota // it fits, and was charged
	Uncharged                       // it fits, but another limit denied the request, so that nothing was charged
	Denied                          // it does not fit, and denied the request
	ShadowDenied                    // it does not fit, in shadow mode: the request does not know
	QuotaOver                       // it does not fit, in quota mode, and did not deny the request
	AllowedOnFailure                // the store failed, and the rule says allow
	DeniedOnFailure                 // the store failed, and the rule says deny
	AllowedLocally                  // the store failed, and it fits this process's share
	DeniedLocally                   // the store failed, and it does not fit this process's share
)

var outcomeNames = [...]string{
	"allowed", "uncharged", "denied", "shadow_denied", "quota_over", "allowed_on_failure", "denied_on_failure",
	"allowed_locally", "denied_locally",
}

// Outcomes are all outcomes, in order: Outcomes()[o] == o.
func Outcomes() []Outcome {
	all := make([]Outcome, len(outcomeNames))
	for i := range all {
		all[i] = Outcome(i)
	}
	return all
}

// String is the outcome as a metric's label.
func (o Outcome) String() string { return outcomeNames[o] }

// Unfit says that the limit did not let the request pass by itself: it denied it, or would have, but for its mode.
func (o Outcome) Unfit() bool {
	switch o {
	case Denied, ShadowDenied, QuotaOver, DeniedOnFailure, DeniedLocally:
		return true
	default:
		return false
	}
}

// Observer is told what the service does. Its methods are called on the way of a request: they must be quick
// and safe for concurrent use.
type Observer interface {
	// Decided reports one limit's part in a request: its cost in hits, 0 for a look, below 0 for what was
	// given back, and what the store said, which is meaningless while it fails and valid only during the call. A
	// limit that a request brought along has the rule that it matched, if any.
	Decided(l *descriptors.Limit, o Outcome, hits int64, d *limiter.Decision)
	// Answered reports a request that was decided as a whole: its domain, nil if that has no rules, and whether Envoy is
	// told OVER_LIMIT.
	Answered(domain *descriptors.Domain, denied bool)
	// StoreFailed reports that a request was answered without the store.
	StoreFailed(err error)
	// Rejected reports a request that was answered by an error, also one that could not be received or decoded.
	Rejected(code codes.Code)
}

type unobserved struct{}

func (unobserved) Decided(*descriptors.Limit, Outcome, int64, *limiter.Decision) {}
func (unobserved) Answered(*descriptors.Domain, bool)                            {}
func (unobserved) StoreFailed(error)                                             {}
func (unobserved) Rejected(codes.Code)                                           {}

func (s *Service) observe(sc *scratch, failed bool) {
	s.o.Observer.Answered(sc.rules, sc.over)
	for i, l := range sc.limits {
		s.o.Observer.Decided(l, sc.outcome(i, failed), sc.hits[i].N, &sc.out[i])
	}
}

func (sc *scratch) outcome(i int, failed bool) Outcome {
	h, fits := &sc.hits[i], sc.out[i].Allowed
	switch {
	case failed && sc.limits[i].Local != nil && fits:
		return AllowedLocally
	case failed && sc.limits[i].Local != nil:
		return DeniedLocally
	case failed && fits:
		return AllowedOnFailure
	case failed:
		return DeniedOnFailure
	case fits && sc.over && h.N > 0 && h.Mode != limiter.Shadow:
		return Uncharged
	case fits:
		return Allowed
	case h.Mode == limiter.Shadow:
		return ShadowDenied
	case sc.denies(i):
		return Denied
	default:
		return QuotaOver
	}
}
