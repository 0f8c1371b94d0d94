package guard

import (
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Permits that are being released count against the process's share, so that it is never exceeded.
func TestSurplusCountsAgainstTheShare(t *testing.T) {
	p, err := limiter.NewPolicy(limiter.Params{Algorithm: limiter.Funnel, Limit: 1000, Window: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	e := &lease{hit: limiter.Hit{Policy: p}, span: time.Second, surplus: 7, last: limiter.Decision{Remaining: 1 << 40}}
	e.rate.add(0, e.span, 100_000, 100_000)
	if got, want := e.want(0), share(p)-7; got != want {
		t.Errorf("it wants %d permits, want %d of its share of %d", got, want, share(p))
	}
}
