package guard

import (
	"context"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// asked counts the requests that reach the store.
type asked struct {
	limiter.Store
	n int
}

func (a *asked) Take(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	a.n++
	return a.Store.Take(ctx, hits, out)
}

// A cached denial does not replace a charge that ByItself requires, unless Uncharged is set.
func TestCachedDenialsOfHitsByThemselves(t *testing.T) {
	now := func() int64 { return 1_800_000_000_000_000 }
	for _, tt := range []struct {
		denied    limiter.ChargeDenied
		n         int64
		uncharged bool
		want      int // of ten requests reach the store
	}{
		{limiter.ChargeFull, 1, false, 10},
		{limiter.ChargeNone, 1, false, 1},
		{limiter.ChargeFull, 0, false, 1},
		{limiter.ChargeFull, 1, true, 1},
	} {
		store := &asked{Store: memory(t, now)}
		d := believing(store, now)
		d.Uncharged = tt.uncharged
		p := policy(t, limiter.Params{
			Algorithm: limiter.FixedWindow, Limit: 1, Window: time.Minute, ChargeDenied: tt.denied,
		})
		hit := limiter.Hit{Key: "k", Policy: p, N: 1, ByItself: true}
		out := make([]limiter.Decision, 1)
		take := func(h limiter.Hit) {
			if err := d.Take(t.Context(), []limiter.Hit{h}, out); err != nil {
				t.Fatal(err)
			}
		}
		take(hit)
		store.n = 0
		hit.N, hit.Peek = tt.n, tt.n == 0
		for range 10 {
			if take(hit); out[0].Allowed {
				t.Fatal("it is not denied")
			}
		}
		if store.n != tt.want {
			t.Errorf("charge_denied %s, cost %d: %d of ten requests reach the store, want %d",
				tt.denied, tt.n, store.n, tt.want)
		}
	}
}

// A cached denial of one hit does not answer a peek that fits at the limit.
func TestCachedDenialIsNoAnswerToALook(t *testing.T) {
	now := func() int64 { return 1_800_000_000_000_000 }
	d := believing(memory(t, now), now)
	p := policy(t, limiter.Params{
		Algorithm: limiter.FixedWindow, Limit: 1, Window: time.Minute, ChargeDenied: limiter.ChargeNone, PeekAtLimit: true,
	})
	out := make([]limiter.Decision, 1)
	for _, h := range []struct {
		hit  limiter.Hit
		want bool
	}{
		{limiter.Hit{Key: "k", Policy: p, N: 1}, true},
		{limiter.Hit{Key: "k", Policy: p, N: 1}, false},
		{limiter.Hit{Key: "k", Policy: p, N: 1}, false},
		{limiter.Hit{Key: "k", Policy: p, Peek: true}, true},
	} {
		if err := d.Take(t.Context(), []limiter.Hit{h.hit}, out); err != nil || out[0].Allowed != h.want {
			t.Errorf("cost %d: %+v, %v; want allowed %t", h.hit.N, out[0], err, h.want)
		}
	}
}
