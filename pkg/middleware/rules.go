package middleware

import (
	"context"
	"net/http"
	"slices"

	"github.com/weir-ratelimit/weir/internal/gate"
	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// HTTPRules returns a middleware that limits requests by the rules of a domain, with the counters in store. set returns
// the rules for each request: Get of a reload.Reloader, or always the same. entries returns the descriptors of a
// request; one without limits passes. All limits that its descriptors reach are charged one hit together, or none.
//
// A denied request gets the headers and the body of its rule's `response`. When the store fails, the OnStoreFailure of
// the limits applies. If that is Local, which is the default, Options.FailClosed applies in its place.
func HTTPRules(
	set func() *descriptors.Set, store limiter.Store, domain string,
	entries func(*http.Request) [][]descriptors.Entry, o Options,
) func(http.Handler) http.Handler {
	g := &gate.Gate{FailClosed: o.FailClosed, OnError: o.OnError}
	return serve(g, func(r *http.Request) (answer, error) {
		ruled := ruled{set: set(), domain: domain, request: entries(r)}
		return ruled.enter(r.Context(), g, store)
	})
}

// ruled is a request that rules limit.
type ruled struct {
	set     *descriptors.Set
	domain  string
	request [][]descriptors.Entry
	hits    []limiter.Hit
	rules   []descriptors.Rule // by descriptor, of those that have hits
}

func (q *ruled) enter(ctx context.Context, g *gate.Gate, store limiter.Store) (answer, error) {
	q.hits = q.set.AppendHits(nil, q.domain, 1, q.request...)
	if len(q.hits) == 0 {
		return answer{Verdict: gate.Verdict{Allowed: true}}, nil
	}
	q.rules = make([]descriptors.Rule, len(q.request))
	for i := range q.hits {
		if g := q.hits[i].Group; i == 0 || g != q.hits[i-1].Group { // hits of a descriptor follow each other
			q.rules[g], _ = q.set.Match(q.domain, q.request[g])
		}
	}
	all := make([]limiter.Decision, len(q.hits))
	if err := store.Take(ctx, q.hits, all); err != nil {
		return q.failed(g, err)
	}
	tightest := q.tightest(all)
	policies, names := make([]*limiter.Policy, len(q.hits)), make([]string, len(q.hits))
	for i := range q.hits {
		l := q.limit(i)
		policies[i] = q.hits[i].Policy
		if names[i] = l.Name(); names[i] == "" {
			names[i] = policies[i].Algorithm().String()
		}
	}
	a := answer{Verdict: gate.NewTerms(policies, names).Verdict(tightest, &all[tightest])}
	owed := limit.Owes(nil, q.hits, all)
	if len(owed) > 0 {
		a.Release = func(ctx context.Context) error { return store.Take(ctx, owed, make([]limiter.Decision, len(owed))) }
	}
	if a.Allowed = limiter.Admitted(q.hits, all); a.Allowed {
		return a, g.Wait(ctx, &a.Verdict, all)
	}
	g.End(ctx, &a.Verdict) // of limits in shadow mode
	q.explain(&a, tightest)
	return a, nil
}

// tightest returns the index of the decision that says what remains: of a denied request one that denies, else of those
// that could.
func (q *ruled) tightest(all []limiter.Decision) int {
	could := make([]limiter.Decision, len(all))
	for i := range all {
		could[i] = all[i]
		if q.hits[i].Mode == limiter.Shadow {
			could[i] = limiter.Decision{Allowed: true, Remaining: limiter.MaxHits}
		}
	}
	return limiter.Tightest(could)
}

// limit returns the limit of a hit.
func (q *ruled) limit(hit int) descriptors.Limit {
	h := &q.hits[hit]
	limits := q.rules[h.Group].Limits()
	i := slices.IndexFunc(limits, func(l descriptors.Limit) bool { return l.Policy() == h.Policy })
	return limits[max(0, i)]
}

// explain adds to a denial what the rule of the hit says to clients.
func (q *ruled) explain(a *answer, hit int) {
	response := q.rules[q.hits[hit].Group].Response()
	if response == nil {
		return
	}
	a.body, a.headers = response.Body, http.Header{}
	for _, h := range response.Headers {
		a.headers.Set(h.Name, h.Value)
	}
}

// failed answers a request that the store did not decide: one limit that denies or fails is enough.
func (q *ruled) failed(g *gate.Gate, err error) (answer, error) {
	v, failed := g.Failed(err)
	isLocal := false
	for i := range q.hits {
		switch q.limit(i).OnStoreFailure() {
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
