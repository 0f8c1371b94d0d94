// Package middleware limits the requests of a net/http server: [HTTP] with a limiter, and [HTTPRules] with the rules of
// Weir. Package grpcmiddleware has interceptors for gRPC servers.
//
// HTTP takes a [limiter.Limiter] and a function that returns the key of a request, such as the client's address:
//
//	perClient, err := limiter.New(store, "client", limiter.NewTokenBucket(60, time.Minute, 10))
//	...
//	limited := middleware.HTTP(perClient, middleware.RemoteIP, middleware.Options{})
//	http.Handle("/", limited(handler))
//
// # What a client sees
//
// The response to a denied request is 429 Too Many Requests, with Retry-After if waiting helps. If a limit decided the
// request, the response also has RateLimit-Policy and RateLimit (draft-ietf-httpapi-ratelimit-headers-10).
//
// A limit that delays requests ([limiter.LeakyQueue], or a MaxWait) holds a request until it may continue. If the
// request's context ends earlier, the response is 503 Service Unavailable. A hit of [limiter.Concurrency] is released
// when the request ends, unless the request was in flight for longer than the Window.
//
// # When the store fails
//
// A request that the store cannot decide passes, unless [Options].FailClosed is set. [Options].OnError gets each error.
package middleware

import (
	"net"
	"net/http"

	"github.com/weir-ratelimit/weir/internal/gate"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Options configure a middleware. The zero value fails open.
type Options struct {
	// FailClosed denies a request that the store cannot decide: 503 Service Unavailable, or Unavailable in gRPC.
	FailClosed bool
	// OnError, if not nil, is called with each error of the store, possibly concurrently.
	OnError func(error)
}

// HTTP returns a middleware that charges one hit of l for each request, to the counter with the key that key returns.
// A request with an empty key is not limited.
func HTTP(l *limiter.Limiter, key func(*http.Request) string, o Options) func(http.Handler) http.Handler {
	g := (&gate.Gate{FailClosed: o.FailClosed, OnError: o.OnError}).Limit(l)
	return serve(g.Gate, func(r *http.Request) (gate.Verdict, error) { return g.Enter(r.Context(), key(r)) })
}

// serve returns a middleware that decides each request with enter.
func serve(g *gate.Gate, enter func(*http.Request) (gate.Verdict, error)) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			v, err := enter(r)
			if err != nil { // a client whose request was cancelled does not read this response
				http.Error(w, "rate limit not available", http.StatusServiceUnavailable)
				return
			}
			if v.Allowed {
				v.Headers(w.Header().Set)
				defer g.End(r.Context(), &v)
				next.ServeHTTP(w, r)
				return
			}
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			w.Header().Set("X-Content-Type-Options", "nosniff")
			v.Headers(w.Header().Set)
			w.WriteHeader(http.StatusTooManyRequests)
			_, _ = w.Write([]byte(v.Body("rate limit exceeded\n")))
		})
	}
}

// RemoteIP returns the IP address of the connection, for use as a key. Behind a proxy this is the address of the proxy.
// In that case, use a header that the proxy sets and that clients cannot forge.
func RemoteIP(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}
