package limiter_test

import (
	"fmt"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/pkg/limiter"
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
		window, tick := w.in.Window.Microseconds(), w.policy.Args()[1]
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

// TestQueueThatIsFullIsNeverIdle: as long as requests are waiting, one departs every W/N, to the microsecond.
func TestQueueThatIsFullIsNeverIdle(t *testing.T) {
	p := mustPolicy(t, limiter.Params{Algorithm: limiter.LeakyQueue, Limit: 3, Window: time.Second, Burst: 2})
	var s limiter.State
	var got []int64
	for now := int64(epoch); now < epoch+10_000_000; now += 1_000 {
		var d limiter.Decision
		if s, d = p.Step(s, now, 1); d.Allowed {
			got = append(got, now+d.Wait.Microseconds()-epoch)
		}
	}
	if len(got) != 32 { // 1 + 30 in ten seconds, and those that wait at their end
		t.Errorf("%d requests departed or wait after ten seconds of 3 a second, want 32: %d", len(got), got)
	}
	for i, at := range got {
		if want := (int64(i)*1_000_000 + 2) / 3; at != want {
			t.Errorf("request %d departs at %d us, want %d", i, at, want)
		}
	}
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
		{Limit: 1<<32 - 1, Window: limiter.MinWindow, MaxWait: time.Second},
	} {
		in.Algorithm, in.MaxCost = limiter.SmoothBursty, limiter.MaxCost
		t.Run(fmt.Sprintf("%d per %s", in.Limit, in.Window), func(t *testing.T) {
			p := mustPolicy(t, in)
			o := newOracle(in, p)
			s, d := p.Step(limiter.State{}, epoch, limiter.MaxCost)
			o.charge(epoch, limiter.MaxCost)
			if !d.Allowed || d.Wait != 0 {
				t.Fatalf("the first request: %+v", d)
			}
			_, d = p.Step(s, epoch, 1)
			const year = 365 * 24 * time.Hour
			if at := epoch + d.RetryAfter.Microseconds(); d.RetryAfter < year &&
				(!o.fits(at, 1) || at > epoch && o.fits(at-1, 1)) ||
				o.fits(epoch+year.Microseconds(), 1) != (d.RetryAfter <= year) {
				t.Errorf("after %d hits: %+v, which is not when they are paid for", limiter.MaxCost, d)
			}
		})
	}
}

// TestNeverMoreInFlight: as long as requests end within their lease, no more of them are in flight than the limit,
// whichever begin and end when; and when all have crashed, the last lease's end gives back everything.
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

// TestInFlightUpToTheLimit: where none crash and denials are free, whoever is below the limit gets in.
func TestInFlightUpToTheLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.Int64Range(1, 5).Draw(t, "limit")
		p := mustPolicy(t, limiter.Params{Algorithm: limiter.Concurrency, Limit: limit, Window: time.Hour})
		var s limiter.State
		inFlight := int64(0)
		for i := range rapid.Int64Range(1, 100).Draw(t, "events") {
			n := int64(1)
			if inFlight > 0 && rapid.Bool().Draw(t, "end") {
				n = -1
			}
			var d limiter.Decision
			s, d = p.Step(s, epoch+i*1000, n)
			if d.Allowed != (inFlight+n <= limit) {
				t.Fatalf("%d of %d in flight, %+d: %+v", inFlight, limit, n, d)
			}
			if d.Allowed {
				inFlight += n
			}
			if d.Remaining != limit-inFlight {
				t.Fatalf("%d of %d in flight: %+v", inFlight, limit, d)
			}
		}
	})
}

// TestEmptyBucketFillsWhileItIsHammered: denials neither delay the tokens nor keep the bucket from being full for long
// enough to be forgotten.
func TestEmptyBucketFillsWhileItIsHammered(t *testing.T) {
	for _, refill := range []limiter.Refill{limiter.RefillGreedy, limiter.RefillInterval} {
		t.Run(refill.String(), func(t *testing.T) {
			p := mustPolicy(t, limiter.Params{
				Algorithm: limiter.TokenBucket, Limit: 1, Window: time.Second, Burst: 3, Initial: limiter.InitialEmpty,
				Refill: refill,
			})
			var s limiter.State
			for ms := int64(0); ms < 18_000; ms += 100 {
				var d limiter.Decision
				s, d = p.Step(s, epoch+ms*1000, 4)
				want := min(3, ms%6_000/1000) // full after 3 s, forgotten after 3 s more
				if d.Allowed || d.Remaining != want {
					t.Fatalf("after %d ms: %+v, want %d tokens", ms, d, want)
				}
			}
		})
	}
}

// TestBatchesComeWhole: however a bucket is used, tokens come back Limit at a time, the first batch a Window after a
// hit on the full bucket, and the next ones a Window apart.
func TestBatchesComeWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit, burst := rapid.Int64Range(1, 5).Draw(t, "limit"), rapid.Int64Range(1, 12).Draw(t, "burst")
		p := mustPolicy(t, limiter.Params{
			Algorithm: limiter.TokenBucket, Limit: limit, Window: 5 * time.Millisecond, Burst: burst,
			Refill: limiter.RefillInterval,
		})
		var s limiter.State
		has, batch := burst, int64(0)
		for ms := range rapid.Int64Range(1, 100).Draw(t, "milliseconds") {
			_, d := p.Step(s, epoch+ms*1000, 0)
			want := has
			if has < burst && ms-batch == 5 {
				want, batch = min(burst, has+limit), ms
			}
			if d.Remaining != want {
				t.Fatalf("%d of %d tokens after %d ms, %d every 5 ms, the last batch at %d: want %d", d.Remaining, burst, ms, limit,
					batch, want)
			}
			n := rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, burst)).Draw(t, "cost")
			if want == burst {
				batch = ms // where this is a hit
			}
			s, d = p.Step(s, epoch+ms*1000, n)
			has = d.Remaining
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
