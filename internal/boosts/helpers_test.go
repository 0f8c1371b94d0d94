package boosts_test

import (
	"context"
	"testing"
)

// contextOf outlives t.Context, which ends before what is deferred.
func contextOf(t *testing.T) (context.Context, context.CancelFunc) {
	t.Helper()
	return context.WithCancel(context.WithoutCancel(t.Context()))
}
