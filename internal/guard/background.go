package guard

import "context"

type backgroundKey struct{}

// background marks a call to the store for which no request waits.
func background(ctx context.Context) context.Context {
	return context.WithValue(ctx, backgroundKey{}, true)
}

// IsBackground reports whether no request waits for the call that has this context: a lease is renewed or released.
func IsBackground(ctx context.Context) bool { return ctx.Value(backgroundKey{}) != nil }
