package limiter_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// TestNeverMoreInFlight: if requests end within their lease, never more of them are in flight than the limit, in
// whatever order they begin and end. If all of them crash, the end of the last lease refunds everything.
func TestNeverMoreInFlight(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWalk(t, limiter.Concurrency)
		lease := w.in.Window.Microseconds()
		var flying []event
		for range rapid.IntRange(1, 120).Draw(t, "events") {
			until := w.now + rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, lease/2)).Draw(t, "pass")
			for i := 0; i < len(flying); i++ { // whose lease is over by then ends before
				if e := flying[i]; e.at+lease <= until {
					w.now = e.at + lease - 1
					flying = append(flying[:i], flying[i+1:]...)
					w.step(-e.n)
					i--
				}
			}
			w.now = until
			if len(flying) > 0 && rapid.Bool().Draw(t, "end") {
				i := rapid.IntRange(0, len(flying)-1).Draw(t, "which")
				n := flying[i].n
				flying = append(flying[:i], flying[i+1:]...)
				w.step(-n)
				continue
			}
			if n := w.cost(t, 1); w.step(n).Allowed {
				flying = append(flying, event{w.now, n})
			}
			if got := sum(flying, func(event) bool { return true }); got > w.in.Limit {
				t.Fatalf("%+v: %d in flight at %d", w.in, got, w.now)
			}
		}
		w.now += lease
		if d := w.step(0); d != (limiter.Decision{Allowed: true, Remaining: w.in.Limit}) {
			t.Fatalf("%+v: a lease after the last request: %+v", w.in, d)
		}
	})
}

// mustPolicy makes a policy of sound parameters.
func mustPolicy(t interface {
	Helper()
	Fatalf(format string, args ...any)
}, in limiter.Params,
) *limiter.Policy {
	t.Helper()
	p, err := limiter.NewPolicy(in)
	if err != nil {
		t.Fatalf("NewPolicy(%+v): %v", in, err)
	}
	return p
}
