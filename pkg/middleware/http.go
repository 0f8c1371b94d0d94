package middleware

import (
	"net"
	"net/http"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// HTTP returns a middleware that charges one hit of l for each request, under the key that key returns for it. A
// request with an empty key is not limited.
func HTTP(l *limiter.Limiter, key func(*http.Request) string, o Options) func(http.Handler) http.Handler {
	g := newGate(l, o)
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			v, err := g.enter(r.Context(), key(r))
			if err != nil { // a client that has gone does not see it
				http.Error(w, "rate limit not available", http.StatusServiceUnavailable)
				return
			}
			g.headers(&v, w.Header().Set)
			if !v.allowed {
				http.Error(w, "rate limit exceeded", http.StatusTooManyRequests)
				return
			}
			defer v.release()
			next.ServeHTTP(w, r)
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
