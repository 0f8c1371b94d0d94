// Package middleware limits the requests of a Go server: [HTTP] wraps a net/http handler, [UnaryServerInterceptor]
// and [StreamServerInterceptor] go into a gRPC server.
//
// Each takes a [limiter.Limiter] and a function that returns the key of a request, such as its client's address or
// its user:
//
//	perClient := middleware.HTTP(limiter.New(store, policy), middleware.RemoteIP, middleware.Options{})
//	http.Handle("/", perClient(handler))
//
// # What a client sees
//
// A denied HTTP request is answered 429 Too Many Requests with Retry-After, a denied call ResourceExhausted with a
// RetryInfo. Every response that a limit decided carries RateLimit-Policy and RateLimit
// (draft-ietf-httpapi-ratelimit-headers-10); gRPC has them, and retry-after, as metadata.
//
// A limit that delays requests ([limiter.LeakyQueue], or a MaxWait) holds the request until it may go on. If the
// request's context ends earlier, the answer is 503 Service Unavailable, or the context's status. Hits of
// [limiter.Concurrency] are released when the request ends, unless it was in flight for longer than the Window.
//
// # When the store fails
//
// A request passes that the store cannot decide, unless [Options].FailClosed is set. [Options].OnError gets each
// error.
package middleware

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Options change what a middleware does. The zero value lets requests pass that the store cannot decide.
type Options struct {
	// FailClosed denies a request when the store cannot decide: 503 Service Unavailable, or Unavailable. By default
	// it passes.
	FailClosed bool
	// OnError is called with each error of the store, for a log or a counter. Nil is nothing.
	OnError func(error)
}

// releaseTimeout bounds the release of a request in flight, which outlives the request's own context.
const releaseTimeout = time.Second

// gate decides requests for the three doors of the package.
type gate struct {
	limiter  *limiter.Limiter
	names    []string // of the policies, as RateLimit shows them
	policies string   // the value of RateLimit-Policy
	releases bool     // a policy is of Concurrency
	o        Options
}

func newGate(l *limiter.Limiter, o Options) *gate {
	g := &gate{limiter: l, o: o}
	seen := map[string]int{}
	for i, p := range l.Policies() {
		name := p.Algorithm().String()
		if seen[name]++; seen[name] > 1 {
			name += "-" + strconv.Itoa(seen[name])
		}
		g.names = append(g.names, name)
		if i > 0 {
			g.policies += ", "
		}
		g.policies += fmt.Sprintf("%q;q=%d", name, p.Limit())
		if p.Algorithm() == limiter.Concurrency {
			g.releases = true
			g.policies += `;qu="concurrent-requests"`
			continue
		}
		g.policies += fmt.Sprintf(";w=%d", seconds(p.Window()))
	}
	return g
}

// verdict is what the gate found for one request.
type verdict struct {
	allowed    bool
	retryAfter time.Duration // of a denied request: limiter.Never if no wait helps
	rateLimit  string        // the value of RateLimit; empty where no limit decided
	release    func()        // to be called when an allowed request ends
}

// enter decides a request with this key, and returns when it may go on. The error is the store's, with FailClosed, or
// that of ctx.
func (g *gate) enter(ctx context.Context, key string) (verdict, error) {
	if key == "" {
		return verdict{allowed: true, release: func() {}}, nil
	}
	all, err := g.limiter.AllowEach(ctx, key, 1)
	if err != nil {
		if g.o.OnError != nil {
			g.o.OnError(err)
		}
		if g.o.FailClosed {
			return verdict{}, err
		}
		return verdict{allowed: true, release: func() {}}, nil
	}
	i := limiter.Tightest(all)
	v := verdict{allowed: all[i].Allowed, retryAfter: all[i].RetryAfter, rateLimit: g.rateLimit(i, &all[i])}
	if !v.allowed {
		return v, nil
	}
	v.release = g.releaser(ctx, key, all)
	if err := limiter.Sleep(ctx, limiter.LongestWait(all)); err != nil {
		v.release()
		return verdict{}, err
	}
	return v, nil
}

// rateLimit is the value of RateLimit: what is left of the tightest limit, and when it is available again.
func (g *gate) rateLimit(i int, d *limiter.Decision) string {
	reset := d.ResetAfter
	if !d.Allowed && d.RetryAfter != limiter.Never {
		reset = d.RetryAfter
	}
	return fmt.Sprintf("%q;r=%d;t=%d", g.names[i], d.Remaining, seconds(reset))
}

func (g *gate) releaser(ctx context.Context, key string, admitted []limiter.Decision) func() {
	if !g.releases {
		return func() {}
	}
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
		defer cancel()
		if err := g.limiter.Release(ctx, key, 1, admitted...); err != nil && g.o.OnError != nil {
			g.o.OnError(err)
		}
	}
}

// seconds rounds up, so that a client that waits so long is not too early.
func seconds(d time.Duration) int64 { return int64(math.Ceil(d.Seconds())) }

// headers sets the response headers of a request that a limit decided.
func (g *gate) headers(v *verdict, set func(name, value string)) {
	if v.rateLimit == "" {
		return
	}
	set("RateLimit-Policy", g.policies)
	set("RateLimit", v.rateLimit)
	if !v.allowed && v.retryAfter != limiter.Never {
		set("Retry-After", strconv.FormatInt(seconds(v.retryAfter), 10))
	}
}
