// Package sleep waits.
package sleep

import (
	"context"
	"time"
)

// For returns nil after d, such as a limiter.Decision's Wait, or ctx's error when ctx is done earlier.
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
