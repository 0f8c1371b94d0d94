package gate

import (
	"cmp"
	"context"
	"math"
	"slices"

	core "github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Rules is a gate that decides requests with the rules of a domain.
type Rules struct {
	*Gate

	Set    func() *descriptors.Set // returns the rules in force, for each request
	Store  limiter.Store
	Domain string
}

// ruled is a request that Rules decides.
type ruled struct {
	*Rules
	core.Asked
}

// Enter decides a request with these descriptors, and waits if it is delayed. A request without limits passes.
func (r *Rules) Enter(ctx context.Context, entries [][]descriptors.Entry) (Verdict, error) {
	d, q := (*core.Set)(r.Set()).Domain(r.Domain), ruled{Rules: r}
	for _, e := range entries {
		q.Add(e, d.Match(e), nil)
	}
	q.MakeHits(d, math.MaxInt)
	if len(q.Hits) == 0 {
		return Verdict{Allowed: true}, nil
	}
	all := make([]limiter.Decision, len(q.Hits))
	if err := q.Store.Take(ctx, q.Hits, all); err != nil {
		return q.undecided(err)
	}
	tightest := q.tightest(all)
	v := termsOf(q.Limits).verdict(tightest, &all[tightest])
	if owed := limit.Owes(nil, q.Hits, all, false); len(owed) > 0 { // charges are final, because no end corrects them
		v.Release = func(ctx context.Context) error {
			return q.Store.Take(ctx, owed, make([]limiter.Decision, len(owed)))
		}
	}
	if v.Allowed = limiter.Admitted(q.Hits, all); v.Allowed {
		return v, q.wait(ctx, &v, all)
	}
	q.End(ctx, &v) // releases the hits of limits in shadow mode
	v.Response = q.Limits[tightest].Rule.Response
	return v, nil
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

// undecided returns the verdict on a request that the store did not decide. One limit with Fail or Deny is decisive.
func (q *ruled) undecided(err error) (Verdict, error) {
	v, failed := q.failed(err)
	isLocal := false
	for _, l := range q.Limits {
		switch l.OnStoreFailure {
		case descriptors.Fail:
			return Verdict{}, err
		case descriptors.Deny:
			return Verdict{RetryAfter: limiter.Never}, nil
		case descriptors.Local:
			isLocal = true
		case descriptors.Allow:
		}
	}
	if !isLocal {
		return Verdict{Allowed: true}, nil
	}
	return v, failed
}

func termsOf(limits []*core.Limit) *terms {
	policies, names := make([]*limiter.Policy, len(limits)), make([]string, len(limits))
	for i, l := range limits {
		policies[i], names[i] = l.Policy, cmp.Or(l.Name, l.Policy.Algorithm().String())
	}
	return newTerms(policies, names)
}
