package redisstore_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/weir-ratelimit/weir/internal/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/limitertest"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// TestCluster runs on one cluster, which its parts leave as they found it, but for the last one.
func TestCluster(t *testing.T) {
	c := redistest.StartCluster(t, 3)
	var stores atomic.Int64
	fresh := func(t *testing.T, clock *limitertest.Clock) limiter.Store {
		t.Helper()
		return open(t, redisstore.Options{URL: c.URL(), KeyPrefix: fmt.Sprintf("t%d:", stores.Add(1)), Now: clock.Now})
	}
	t.Run("contract", func(t *testing.T) { limitertest.Run(t, fresh) })
	t.Run("scripts agree with Go", func(t *testing.T) { limitertest.Histories(t, fresh, 600) })
}
