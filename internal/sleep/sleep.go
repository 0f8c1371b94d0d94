// Package sleep waits with a context.
package sleep

import (
	"context"
	"time"
)

// For returns nil after d, or ctx's error if ctx is done earlier.
func For(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
