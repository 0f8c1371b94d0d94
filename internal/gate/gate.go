// Package gate decides the requests of a server, for the middlewares of net/http and gRPC.
package gate

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/internal/sleep"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Verdict is the decision on one request.
type Verdict struct {
	Allowed    bool
	RetryAfter time.Duration // for a denied request; limiter.Never if no wait helps
	// Release releases the request from its limits on requests in flight. Nil means that it has none.
	Release func(ctx context.Context) error
	// Response has the headers and the body that the rule sets for a denied request. Nil means that it sets none.
	Response *descriptors.Response

	policies, rateLimit string // values of the headers RateLimit-Policy and RateLimit; empty if no limit decided
}

// releaseTimeout is the timeout of a Release, which also runs after the request's context has ended.
const releaseTimeout = time.Second

// Gate decides requests. It calls OnError, if not nil, with each error of the store.
type Gate struct {
	FailClosed bool
	OnError    func(error)
}

// Limited is a gate that decides requests with one limiter.
type Limited struct {
	*Gate

	limiter  *limiter.Limiter
	terms    *terms
	releases bool // one of the policies counts requests in flight
}

// Limit returns a gate that decides requests with l.
func (g *Gate) Limit(l *limiter.Limiter) *Limited {
	names := make([]string, len(l.Policies()))
	for i := range names {
		names[i] = l.Name()
	}
	return &Limited{
		Gate: g, limiter: l, terms: newTerms(l.Policies(), names),
		releases: slices.ContainsFunc(l.Policies(), func(p *limiter.Policy) bool { return p.Algorithm().CountsInFlight() }),
	}
}

// Enter decides a request with a key. If the request is delayed, Enter waits first. A request with an empty key passes.
func (g *Limited) Enter(ctx context.Context, key string) (Verdict, error) {
	if key == "" {
		return Verdict{Allowed: true}, nil
	}
	all, err := g.limiter.AllowEach(ctx, key, 1)
	if err != nil {
		return g.failed(err)
	}
	tightest := limiter.Tightest(all)
	v := g.terms.verdict(tightest, &all[tightest])
	if g.releases {
		v.Release = func(ctx context.Context) error { return g.limiter.Release(ctx, key, 1, all...) }
	}
	return v, g.wait(ctx, &v, all)
}

// failed returns the verdict on a request that the store did not decide. With FailClosed it returns the store's error.
func (g *Gate) failed(err error) (Verdict, error) {
	if g.OnError != nil {
		g.OnError(err)
	}
	if g.FailClosed {
		return Verdict{}, err
	}
	return Verdict{Allowed: true}, nil
}

// terms are the policies of a request in the form of the response headers.
type terms struct {
	names  []string
	header string // value of RateLimit-Policy
}

// newTerms returns the terms of policies with these names. If names are equal, all but the first get a number.
func newTerms(policies []*limiter.Policy, names []string) *terms {
	t := &terms{}
	var list []string
	seen := map[string]int{}
	for i, p := range policies {
		name := names[i]
		if seen[name]++; seen[name] > 1 {
			name += "-" + strconv.Itoa(seen[name])
		}
		unit := fmt.Sprintf("w=%d", seconds(p.Window()))
		if p.Algorithm().CountsInFlight() {
			unit = `qu="concurrent-requests"`
		}
		t.names, list = append(t.names, name), append(list, fmt.Sprintf("%q;q=%d;%s", name, p.Limit(), unit))
	}
	t.header = strings.Join(list, ", ")
	return t
}

// verdict returns the verdict for the tightest decision d, which is the decision of policy i.
func (t *terms) verdict(i int, d *limiter.Decision) Verdict {
	reset := d.ResetAfter
	if !d.Allowed && d.RetryAfter != limiter.Never {
		reset = d.RetryAfter
	}
	return Verdict{
		Allowed: d.Allowed, RetryAfter: d.RetryAfter, policies: t.header,
		rateLimit: fmt.Sprintf("%q;r=%d;t=%d", t.names[i], d.Remaining, seconds(reset)),
	}
}

// wait waits until an allowed request may continue. If ctx ends earlier, wait ends the request and returns ctx's error.
func (g *Gate) wait(ctx context.Context, v *Verdict, all []limiter.Decision) error {
	if !v.Allowed {
		return nil
	}
	err := sleep.For(ctx, limiter.LongestWait(all))
	if err != nil {
		g.End(ctx, v)
	}
	return err
}

// End releases the request from its limits on requests in flight.
func (g *Gate) End(ctx context.Context, v *Verdict) {
	if v.Release == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	if err := v.Release(ctx); err != nil && g.OnError != nil {
		g.OnError(err)
	}
}

// seconds rounds up, so that a client that waits that long does not come too early.
func seconds(d time.Duration) int64 { return int64(math.Ceil(d.Seconds())) }

// Headers calls set for each response header: first the limit headers of the limit that decided, then Response.Headers.
func (v *Verdict) Headers(set func(name, value string)) {
	if v.rateLimit == "" {
		return
	}
	set("RateLimit-Policy", v.policies)
	set("RateLimit", v.rateLimit)
	if !v.Allowed && v.RetryAfter != limiter.Never {
		set("Retry-After", strconv.FormatInt(seconds(v.RetryAfter), 10))
	}
	if v.Response != nil {
		for _, h := range v.Response.Headers {
			set(h.Name, h.Value)
		}
	}
}

// Body returns the text for a denied request: Response.Body if there is one, else fallback.
func (v *Verdict) Body(fallback string) string {
	if v.Response == nil {
		return fallback
	}
	return cmp.Or(v.Response.Body, fallback)
}
