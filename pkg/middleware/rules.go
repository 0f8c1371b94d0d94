package middleware

import (
	"cmp"
	"context"
	"math"
	"net/http"
	"slices"

	core "github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/gate"
	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// HTTPRules returns a middleware that limits requests with the rules of a domain, and counts in store. set returns the
// rules for each request, for example Get of a reload.Reloader. entries returns the descriptors of a request. All
// limits for these descriptors are charged one hit, or none of them. A request without limits passes.
//
// The response to a denied request has the headers and the body of the rule's `response`. If the store fails, the
// OnStoreFailure of the limits applies. Options.FailClosed replaces Local, the default.
func HTTPRules(
	set func() *descriptors.Set, store limiter.Store, domain string,
	entries func(*http.Request) [][]descriptors.Entry, o Options,
) func(http.Handler) http.Handler {
	g := &gate.Gate{FailClosed: o.FailClosed, OnError: o.OnError}
	return serve(g, func(r *http.Request) (answer, error) {
		d, q := (*core.Set)(set()).Domain(domain), ruled{Gate: g, store: store}
		for _, e := range entries(r) {
			q.Add(e, d.Match(e), nil)
		}
		q.MakeHits(d, math.MaxInt)
		return q.enter(r.Context())
	})
}

// ruled is a request that HTTPRules decides.
type ruled struct {
	*gate.Gate
	core.Asked

	store limiter.Store
}

func (q *ruled) enter(ctx context.Context) (answer, error) {
	if len(q.Hits) == 0 {
		return answer{Verdict: gate.Verdict{Allowed: true}}, nil
	}
	all := make([]limiter.Decision, len(q.Hits))
	if err := q.store.Take(ctx, q.Hits, all); err != nil {
		return q.failed(err)
	}
	tightest := q.tightest(all)
	a := answer{Verdict: terms(q.Limits).Verdict(tightest, &all[tightest])}
	owed := limit.Owes(nil, q.Hits, all)
	if len(owed) > 0 {
		a.Release = func(ctx context.Context) error {
			return q.store.Take(ctx, owed, make([]limiter.Decision, len(owed)))
		}
	}
	if a.Allowed = limiter.Admitted(q.Hits, all); a.Allowed {
		return a, q.Wait(ctx, &a.Verdict, all)
	}
	q.End(ctx, &a.Verdict) // releases the hits of limits in shadow mode
	if response := q.Limits[tightest].Rule.Response; response != nil {
		a.body, a.headers = response.Body, http.Header{}
		for _, h := range response.Headers {
			a.headers.Set(h.Name, h.Value)
		}
	}
	return a, nil
}

// tightest returns the index of the tightest decision, for the response headers. Limits in shadow mode come last.
func (q *ruled) tightest(all []limiter.Decision) int {
	could := slices.Clone(all)
	for i := range could {
		if q.Hits[i].Mode == limiter.Shadow {
			could[i] = limiter.Decision{Allowed: true, Remaining: limiter.MaxHits}
		}
	}
	return limiter.Tightest(could)
}

// failed returns the answer to a request that the store did not decide. One limit with Fail or Deny is decisive.
func (q *ruled) failed(err error) (answer, error) {
	v, failed := q.Failed(err)
	isLocal := false
	for _, l := range q.Limits {
		switch l.OnStoreFailure {
		case descriptors.Fail:
			return answer{}, err
		case descriptors.Deny:
			return answer{Verdict: gate.Verdict{RetryAfter: limiter.Never}}, nil
		case descriptors.Local:
			isLocal = true
		case descriptors.Allow:
		}
	}
	if !isLocal {
		return answer{Verdict: gate.Verdict{Allowed: true}}, nil
	}
	return answer{Verdict: v}, failed
}

func terms(limits []*core.Limit) *gate.Terms {
	policies, names := make([]*limiter.Policy, len(limits)), make([]string, len(limits))
	for i, l := range limits {
		policies[i], names[i] = l.Policy, cmp.Or(l.Name, l.Policy.Algorithm().String())
	}
	return gate.NewTerms(policies, names)
}
