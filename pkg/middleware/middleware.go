// Package middleware limits the requests of a net/http server: [HTTP] by a limiter, and [HTTPRules] by the rules of
// Weir. Package grpcmiddleware has interceptors for gRPC servers.
//
// HTTP takes a [limiter.Limiter] and a function that returns the key of a request, such as its client's address or
// its user:
//
//	perClient, err := limiter.New(store, "client", limiter.NewTokenBucket(60, time.Minute, 10))
//	...
//	limited := middleware.HTTP(perClient, middleware.RemoteIP, middleware.Options{})
//	http.Handle("/", limited(handler))
//
// # What a client sees
//
// A denied request is answered 429 Too Many Requests with Retry-After. Every response that a limit decided carries
// RateLimit-Policy and RateLimit (draft-ietf-httpapi-ratelimit-headers-10), which name the limiter, or the limit of a
// rule.
//
// A limit that delays requests ([limiter.LeakyQueue], or a MaxWait) holds the request until it may go on. If the
// request's context ends earlier, the answer is 503 Service Unavailable. Hits of [limiter.Concurrency] are released
// when the request ends, unless it was in flight for longer than the Window.
//
// # When the store fails
//
// A request passes that the store cannot decide, unless [Options].FailClosed is set. [Options].OnError gets each
// error.
package middleware

import (
	"maps"
	"net"
	"net/http"

	"github.com/weir-ratelimit/weir/internal/gate"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Options change what a middleware does. The zero value lets requests pass that the store cannot decide.
type Options struct {
	// FailClosed denies a request when the store cannot decide: 503 Service Unavailable, or Unavailable in gRPC. By
	// default it passes.
	FailClosed bool
	// OnError is called with each error of the store, for a log or a counter. Nil is nothing.
	OnError func(error)
}

// HTTP returns a middleware that charges one hit of l for each request, under the key that key returns for it. A
// request with an empty key is not limited.
func HTTP(l *limiter.Limiter, key func(*http.Request) string, o Options) func(http.Handler) http.Handler {
	g := (&gate.Gate{FailClosed: o.FailClosed, OnError: o.OnError}).Limit(l)
	return serve(g.Gate, func(r *http.Request) (answer, error) {
		v, err := g.Enter(r.Context(), key(r))
		return answer{Verdict: v}, err
	})
}

// answer is the verdict on a request, and what a rule adds to a denial.
type answer struct {
	gate.Verdict

	headers http.Header
	body    string // empty: the usual one
}

// serve returns a middleware that has enter decide each request.
func serve(g *gate.Gate, enter func(*http.Request) (answer, error)) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			a, err := enter(r)
			if err != nil { // a client that has gone does not see it
				http.Error(w, "rate limit not available", http.StatusServiceUnavailable)
				return
			}
			a.Headers(w.Header().Set)
			if a.Allowed {
				defer g.End(r.Context(), &a.Verdict)
				next.ServeHTTP(w, r)
				return
			}
			body := "rate limit exceeded\n"
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			w.Header().Set("X-Content-Type-Options", "nosniff")
			maps.Copy(w.Header(), a.headers)
			if a.body != "" {
				body = a.body
			}
			w.WriteHeader(http.StatusTooManyRequests)
			_, _ = w.Write([]byte(body))
		})
	}
}

// RemoteIP is a key: the address that the connection comes from. Behind a proxy that is the proxy's; read the header
// then that your proxy sets, and that clients cannot.
func RemoteIP(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}
