package guard_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/internal/guard"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// atOnceFirst decides as Weir inside Envoy does: by TakeAtOnce, and by Take what that leaves.
type atOnceFirst struct {
	*guard.Leases

	tb testing.TB
	// refusalsChangeNothing has each refusal of TakeAtOnce checked. It needs a caller that is alone.
	refusalsChangeNothing bool
}

func (s *atOnceFirst) Take(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	s.tb.Helper()
	before := s.Stats()
	if s.TakeAtOnce(hits, out) {
		return nil
	}
	if after := s.Stats(); s.refusalsChangeNothing && after != before {
		s.tb.Errorf("TakeAtOnce returned false for %v, and changed %+v to %+v", hits, before, after)
	}
	clear(out) // it means nothing
	return s.Leases.Take(ctx, hits, out)
}

// While time stands still, leases that decide at once what they can decide exactly as leases that do not, and hold the
// same permits. Both decide as the store alone.
func TestAtOnceAsTake(t *testing.T) {
	atOnce := uint64(0)
	rapid.Check(t, func(rt *rapid.T) {
		policies, history := drawHistory(t, rt)
		wrong := ""
		synctest.Test(t, func(t *testing.T) {
			plain, quick := newLeases(t, newFar(t)), newLeases(t, newFar(t))
			first := &atOnceFirst{Leases: quick, tb: t, refusalsChangeNothing: true}
			for at, hits := range history {
				synctest.Wait()
				want, got := take(t, plain, hits...), take(t, first, hits...)
				if a, b := fmt.Sprintf("%+v %+v", want, settled(plain)), fmt.Sprintf("%+v %+v", got, settled(quick)); a != b {
					wrong = fmt.Sprintf("request %d, %v:\n%s by Take\n%s at once", at, hits, a, b)
					return
				}
			}
			atOnce += quick.Stats().Answers
			if wrong = unlikeStrict(t, policies, history, func(l *guard.Leases) limiter.Store {
				return &atOnceFirst{Leases: l, tb: t, refusalsChangeNothing: true}
			}); wrong != "" {
				wrong = "beside the store alone: " + wrong
			}
		})
		if wrong != "" {
			rt.Fatal(wrong)
		}
	})
	if atOnce == 0 {
		t.Error("no request was decided at once")
	}
}

// TakeAtOnce leaves to the store what permits do not cover, also beside a hit that they cover.
func TestAtOnceRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFar(t)
		l := newLeases(t, f)
		p := hourly(t, 100_000)
		hit := limiter.Hit{Key: "a", Policy: p, Route: onLease, N: 1}
		for range 100 {
			take(t, l, hit)
		}
		held, calls := settled(l), f.calls.Load()
		strict, look, shadow, byItself, cold, many, other := hit, hit, hit, hit, hit, hit, hit
		strict.Route, shadow.Mode, byItself.ByItself, cold.Key = nil, limiter.Shadow, true, "b"
		look.Look, look.N = true, 0
		many.N, other.Policy = held.Permits+1, hourly(t, 100_000)
		for name, hits := range map[string][]limiter.Hit{
			"no hits": nil, "strict": {strict}, "look": {look}, "shadow": {shadow}, "by itself": {byItself}, "cold": {cold},
			"more than there are":        {many},
			"two that are more together": {hit, {Key: "a", Policy: p, Route: onLease, N: held.Permits}},
			"another policy":             {other}, "covered and cold": {hit, cold}, "covered and strict": {hit, strict},
			"covered and by itself": {hit, byItself},
		} {
			if l.TakeAtOnce(hits, make([]limiter.Decision, len(hits))) {
				t.Errorf("%s: decided at once", name)
			}
			if s := settled(l); s != held || f.calls.Load() != calls {
				t.Errorf("%s: %+v and %d calls, before %+v and %d", name, s, f.calls.Load(), held, calls)
			}
		}
		out := make([]limiter.Decision, 2)
		if !l.TakeAtOnce([]limiter.Hit{hit, hit}, out) || !out[0].Allowed || out[1].Remaining != out[0].Remaining-1 {
			t.Errorf("two hits that are covered: %+v", out)
		}
		want := held
		want.Permits, want.Answers = held.Permits-2, held.Answers+1
		if s := settled(l); s != want {
			t.Errorf("%+v, want %+v", s, want)
		}
		time.Sleep(10 * leaseFor)
		if l.TakeAtOnce([]limiter.Hit{hit}, out) {
			t.Error("decided by permits that were returned")
		}
	})
}

// While Close waits for a call, nothing is decided at once, though permits are there: they are about to be released.
func TestAtOnceWhileClosing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFar(t)
		l := newLeases(t, f)
		p := hourly(t, 100_000)
		hit := limiter.Hit{Key: "a", Policy: p, Route: onLease, N: 1}
		other := hit
		other.Key = "b"
		out := make([]limiter.Decision, 1)
		for range 100 {
			take(t, l, hit, other)
		}
		f.set(func(n *network) { n.delay = leaseFor / 10 })
		var wg sync.WaitGroup
		wg.Go(func() {
			for l.TakeAtOnce([]limiter.Hit{other}, out) {
				_ = out // until b has no permits left
			}
			take(t, l, other) // acquires more, and Close waits for it
		})
		synctest.Wait()
		wg.Go(func() {
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		if held, _ := l.Permits("a"); held == 0 || l.TakeAtOnce([]limiter.Hit{hit}, out) {
			t.Errorf("%d permits are held while Close waits, and a request is decided by them", held)
		}
		wg.Wait()
		if n := charged(t, f, "a", p); n != 100 {
			t.Errorf("%d charged, want the 100 that passed", n)
		}
	})
}

// Requests that are decided at once keep their key hot: its permits are renewed, and few requests reach the store.
func TestAtOnceKeepsHot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFar(t)
		l := newLeases(t, f)
		s := &atOnceFirst{Leases: l, tb: t}
		p := hourly(t, 1_000_000)
		for range 2000 { // 40 leases long
			take(t, s, limiter.Hit{Key: "a", Policy: p, Route: onLease, N: 1})
			time.Sleep(time.Millisecond)
		}
		if st := settled(l); st.Answers < 1900 || f.calls.Load() > 200 {
			t.Errorf("%d of 2000 requests were decided without the store, by %d calls", st.Answers, f.calls.Load())
		}
	})
}

// Many callers at once never spend a permit twice.
func TestAtOnceByMany(t *testing.T) {
	f := newFar(t)
	l := newLeases(t, f)
	p := hourly(t, 100_000)
	var wg sync.WaitGroup
	for g := range 8 {
		s := &atOnceFirst{Leases: l, tb: t}
		wg.Go(func() {
			for i := range 500 {
				hits := []limiter.Hit{
					{Key: "a", Policy: p, Route: onLease, N: 1},
					{Key: strconv.Itoa((g + i) % 4), Policy: p, Route: onLease, N: 1},
				}
				take(t, s, hits[:1+i%2]...)
			}
		})
	}
	wg.Wait()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	sum := int64(0)
	for k := range 4 {
		sum += charged(t, f, strconv.Itoa(k), p)
	}
	if a, lost := charged(t, f, "a", p), int64(l.Stats().Lost); a+sum != 6000+lost {
		t.Errorf("%d and %d charged, %d lost, want 6000 beside what is lost", a, sum, lost)
	}
	if n := l.Stats().Permits; n != 0 {
		t.Errorf("%d permits after Close", n)
	}
}
