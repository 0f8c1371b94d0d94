package limiter_test

import (
	"fmt"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

// TestQueueDepartsEvenly: as they were told, no two requests of a queue depart closer than what the later one costs,
// and so after the first no more than the rate in any window, however they arrive.
func TestQueueDepartsEvenly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWalk(t, limiter.LeakyQueue)
		var departed []event
		for range rapid.IntRange(1, 80).Draw(t, "hits") {
			w.move(t)
			n := w.cost(t, 0)
			d := w.step(n)
			if d.Wait < 0 || d.Wait > w.policy.MaxWait() || d.Wait > 0 && (n == 0 || !d.Allowed) {
				t.Fatalf("%+v: cost %d at %d: %+v, where the longest wait is %s", w.in, n, w.now, d, w.policy.MaxWait())
			}
			if d.Allowed && n > 0 {
				departed = append(departed, event{w.now + d.Wait.Microseconds(), n})
			}
		}
		window, tick := w.in.Window.Microseconds(), w.policy.Core().Args()[1]
		for i, first := range departed {
			since := int64(0)
			for _, e := range departed[i+1:] {
				since += e.n
				// What is told is rounded up to the tick, so a distance may look shorter by less than one.
				if least := big.NewRat(since*window, w.in.Limit); rat(e.at-first.at+tick).Cmp(least) <= 0 {
					t.Fatalf("%+v: %d hits depart up to %d after one at %d: closer than %s us", w.in, since, e.at, first.at,
						least.FloatString(3))
				}
				if e.at < first.at+window-tick+1 && since > w.in.Limit {
					t.Fatalf("%+v: 1+%d hits depart in the window from %d", w.in, since, first.at)
				}
			}
		}
	})
}

// TestBigRequestIsPaidInFull: SmoothBursty admits the largest request at once, and the next one waits until all of it
// is paid for, whatever the rate; where that is later than in a year, it waits for a year at least.
func TestBigRequestIsPaidInFull(t *testing.T) {
	for _, in := range []limiter.Params{
		{Limit: 1, Window: time.Second},
		{Limit: 1, Window: time.Minute},
		{Limit: 7, Window: time.Hour},
		{Limit: 99_991, Window: 24 * time.Hour},
		{Limit: 9_973, Window: time.Minute, BurstFor: 5 * time.Second, MaxWait: 300 * time.Millisecond},
		{Limit: 10_000_000, Window: time.Second},
		{Limit: 999_999_937, Window: time.Hour},
		{Limit: 1, Window: 365 * 24 * time.Hour},
		{Limit: 1<<32 - 1, Window: step.MinWindow, MaxWait: time.Second},
	} {
		in.Algorithm, in.MaxCost = limiter.SmoothBursty, step.MaxCost
		t.Run(fmt.Sprintf("%d per %s", in.Limit, in.Window), func(t *testing.T) {
			p := mustPolicy(t, in)
			o := newOracle(in, p)
			s, d := storekit.Step(p, storekit.State{}, epoch, step.MaxCost)
			o.charge(epoch, step.MaxCost)
			if !d.Allowed || d.Wait != 0 {
				t.Fatalf("the first request: %+v", d)
			}
			_, d = storekit.Step(p, s, epoch, 1)
			const year = 365 * 24 * time.Hour
			if at := epoch + d.RetryAfter.Microseconds(); d.RetryAfter < year &&
				(!o.fits(at, 1) || at > epoch && o.fits(at-1, 1)) ||
				o.fits(epoch+year.Microseconds(), 1) != (d.RetryAfter <= year) {
				t.Errorf("after %d hits: %+v, which is not when they are paid for", step.MaxCost, d)
			}
		})
	}
}

// TestNeverMoreInFlight: as long as requests end within their lease, no more of them are in flight than the limit,
// whichever begin and end when; and when all have crashed, the last lease's end refunds everything.
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
