// Package guard has the stages in front of a store that is asked over a network: they answer here what need not be
// asked there.
package guard

import (
	"context"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// leaseTime is for how long permits of the hit's limit may be on lease, 0 where the store decides each request.
func leaseTime(h *limiter.Hit) time.Duration {
	if r, ok := h.Route.(interface{ LeaseTime() time.Duration }); ok {
		return r.LeaseTime()
	}
	return 0
}

type backgroundKey struct{}

// Background marks a call to the store for which no request waits.
func Background(ctx context.Context) context.Context {
	return context.WithValue(ctx, backgroundKey{}, true)
}

// IsBackground reports whether no request waits for the call that has this context: a lease is renewed or released.
func IsBackground(ctx context.Context) bool { return ctx.Value(backgroundKey{}) != nil }
