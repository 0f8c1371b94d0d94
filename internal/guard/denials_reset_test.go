package guard

import (
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Drop also forgets denials of calls in flight, because the policy may have changed meanwhile.
func TestDropForgetsAll(t *testing.T) {
	var now int64
	clock := func() int64 { return now }
	store := memory(t, clock)
	d := believing(store, clock)
	p := policy(t, limiter.Params{Algorithm: limiter.Funnel, Limit: 1, Window: time.Hour})
	take := func() limiter.Decision {
		t.Helper()
		var out [1]limiter.Decision
		if err := d.Take(t.Context(), []limiter.Hit{{Key: "k", Policy: p, N: 1}}, out[:]); err != nil {
			t.Fatal(err)
		}
		return out[0]
	}
	hit := limiter.Hit{Key: "k", Policy: p, N: 1}
	take()
	if cached, ok := d.Cached(hit); ok {
		t.Errorf("before a denial %+v is cached", cached)
	}
	denied := take()
	denied.Cached = true
	if cached, ok := d.Cached(hit); !ok || cached != denied {
		t.Errorf("cached is %+v, %t; want what was answered, %+v", cached, ok, denied)
	}
	if !store.Reset("k") {
		t.Error("the store had no counter to reset")
	}
	if take().Allowed {
		t.Error("a denial was forgotten before it was dropped: this test shows nothing")
	}
	d.Drop()
	if cached, ok := d.Cached(hit); ok {
		t.Errorf("after Drop %+v is cached", cached)
	}
	if got := take(); !got.Allowed {
		t.Errorf("after Drop the store is not asked: %+v", got)
	}
	d.Believe(false)
	if take(); d.Answered() != 1 {
		t.Errorf("%d answers without the store, want 1", d.Answered())
	}
	if _, ok := d.Cached(hit); ok {
		t.Error("a denial answers though nothing is believed")
	}
}
