// Package gate decides the requests of a server: what the middlewares of net/http and gRPC share.
package gate

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/internal/sleep"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Verdict is what a gate found for one request.
type Verdict struct {
	Allowed    bool
	RetryAfter time.Duration // of a denied request: limiter.Never if no wait helps
	// Release ends an allowed request. Nil is nothing to do.
	Release func(ctx context.Context) error

	policies, rateLimit string // the values of the headers; empty where no limit decided
}

// releaseTimeout bounds the release of a request in flight, which outlives the request's own context.
const releaseTimeout = time.Second

// Gate decides requests. Each error of the store goes to OnError, which may be nil.
type Gate struct {
	FailClosed bool
	OnError    func(error)
}

// Limited is a gate whose requests one limiter decides.
type Limited struct {
	*Gate

	limiter  *limiter.Limiter
	terms    *Terms
	releases bool // a policy counts requests in flight
}

// Limit returns the gate with a limiter.
func (g *Gate) Limit(l *limiter.Limiter) *Limited {
	names := make([]string, len(l.Policies()))
	for i := range names {
		names[i] = l.Name()
	}
	return &Limited{
		Gate: g, limiter: l, terms: NewTerms(l.Policies(), names),
		releases: slices.ContainsFunc(l.Policies(), func(p *limiter.Policy) bool { return p.Algorithm().CountsInFlight() }),
	}
}

// Enter decides a request with a key, and returns when it may go on. An empty key passes.
func (g *Limited) Enter(ctx context.Context, key string) (Verdict, error) {
	if key == "" {
		return Verdict{Allowed: true}, nil
	}
	all, err := g.limiter.AllowEach(ctx, key, 1)
	if err != nil {
		return g.Failed(err)
	}
	tightest := limiter.Tightest(all)
	v := g.terms.Verdict(tightest, &all[tightest])
	if g.releases {
		v.Release = func(ctx context.Context) error { return g.limiter.Release(ctx, key, 1, all...) }
	}
	return v, g.Wait(ctx, &v, all)
}

// Failed is the verdict on a request that the store did not decide. The error is the store's, with FailClosed.
func (g *Gate) Failed(err error) (Verdict, error) {
	if g.OnError != nil {
		g.OnError(err)
	}
	if g.FailClosed {
		return Verdict{}, err
	}
	return Verdict{Allowed: true}, nil
}

// Terms are the policies of a request as its client sees them.
type Terms struct {
	names  []string
	header string // RateLimit-Policy
}

// NewTerms returns the terms of policies with these names: of equal ones all but the first get a number.
func NewTerms(policies []*limiter.Policy, names []string) *Terms {
	t := &Terms{}
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

// Verdict returns the verdict of the tightest decision, that of policy i.
func (t *Terms) Verdict(i int, d *limiter.Decision) Verdict {
	reset := d.ResetAfter
	if !d.Allowed && d.RetryAfter != limiter.Never {
		reset = d.RetryAfter
	}
	return Verdict{
		Allowed: d.Allowed, RetryAfter: d.RetryAfter, policies: t.header,
		rateLimit: fmt.Sprintf("%q;r=%d;t=%d", t.names[i], d.Remaining, seconds(reset)),
	}
}

// Wait returns when an allowed request may go on. If ctx ends earlier, it releases the request and returns ctx's error.
func (g *Gate) Wait(ctx context.Context, v *Verdict, all []limiter.Decision) error {
	if !v.Allowed {
		return nil
	}
	err := sleep.For(ctx, limiter.LongestWait(all))
	if err != nil {
		g.End(ctx, v)
	}
	return err
}

// End releases a request that was allowed.
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

// seconds rounds up, so that a client that waits so long is not too early.
func seconds(d time.Duration) int64 { return int64(math.Ceil(d.Seconds())) }

// Headers sets the response headers of a request that a limit decided.
func (v *Verdict) Headers(set func(name, value string)) {
	if v.rateLimit == "" {
		return
	}
	set("RateLimit-Policy", v.policies)
	set("RateLimit", v.rateLimit)
	if !v.Allowed && v.RetryAfter != limiter.Never {
		set("Retry-After", strconv.FormatInt(seconds(v.RetryAfter), 10))
	}
}
