package limitertest

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

func noHits(f *fixture) { f.take() }

func peeks(f *fixture) {
	for _, a := range counting {
		p, key := f.hourly(a, 3), a.String()
		untouched := limiter.Decision{Allowed: true, Remaining: 3, ResetAfter: untilReset(p)}
		for range 5 {
			if d := f.take(limiter.Hit{Key: key, Policy: p, Look: true}); d[0] != untouched {
				f.Errorf("%s: a look at a new key: %s", a, cmp.Diff(untouched, d[0]))
			}
		}
		f.want("+", limiter.Hit{Key: key, Policy: p, N: 2})
		f.want("+", limiter.Hit{Key: key, Policy: p, Look: true})
		f.want("+", limiter.Hit{Key: key, Policy: p, N: 1})
		f.want("-", limiter.Hit{Key: key, Policy: p, Look: true})
	}
	p := policy(f, limiter.Params{
		Algorithm: limiter.FixedWindow, Align: limiter.AlignFirstHit, Limit: 1, Window: time.Minute,
	})
	f.take(limiter.Hit{Key: "first", Policy: p, Look: true})
	f.clock.Advance(30 * time.Second)
	if d := f.take(limiter.Hit{Key: "first", Policy: p, N: 1})[0]; d.ResetAfter != time.Minute {
		f.Errorf("a look began a window: it ends after %s, want 1m0s", d.ResetAfter)
	}
}

func refunds(f *fixture) {
	for _, a := range counting {
		p, key := f.hourly(a, 5), a.String()
		untouched := limiter.Decision{Allowed: true, Remaining: 5, ResetAfter: untilReset(p)}
		if d := f.take(limiter.Hit{Key: key, Policy: p, N: -3})[0]; d != untouched {
			f.Errorf("%s: refund of a new key: %s", a, cmp.Diff(untouched, d))
		}
		f.want("+", limiter.Hit{Key: key, Policy: p, N: 4})
		f.want("+", limiter.Hit{Key: key, Policy: p, N: -1})
		f.remaining(key, p, 2)
		if d := f.take(limiter.Hit{Key: key, Policy: p, N: -limiter.MaxHits})[0]; d != untouched {
			f.Errorf("%s: refund of more than was taken: %s", a, cmp.Diff(untouched, d))
		}
		f.want("+", limiter.Hit{Key: key, Policy: p, N: 5})
		f.want("-", limiter.Hit{Key: key, Policy: p, N: 1})
	}
}

// chargeDenied spends 6 of 10, is denied 8, is given 5 back, and looks at what is left.
func chargeDenied(f *fixture) {
	for _, a := range counting {
		for _, c := range []struct {
			charge             limiter.ChargeDenied
			afterDenial, after int64
		}{
			{limiter.ChargeNone, 4, 9},
			{limiter.ChargeRemaining, 0, 5},
			{limiter.ChargeFull, 0, 1},
		} {
			p := policy(f, limiter.Params{Algorithm: a, Limit: 10, Window: time.Hour, ChargeDenied: c.charge})
			key := a.String() + "/" + c.charge.String()
			f.want("+", limiter.Hit{Key: key, Policy: p, N: 6})
			d := f.take(limiter.Hit{Key: key, Policy: p, N: 8})[0]
			if d.Allowed || d.Remaining != c.afterDenial {
				f.Errorf("%s: 8 of 4: got %+v, want a denial with %d remaining", key, d, c.afterDenial)
			}
			f.want("+", limiter.Hit{Key: key, Policy: p, N: -5})
			f.remaining(key, p, c.after)
		}
	}
}

// invalidHits are errors before anything is charged, and after each of them the store goes on.
func invalidHits(f *fixture) {
	p, log, window := f.hourly(limiter.Funnel, 3), f.hourly(limiter.SlidingLog, 3), f.hourly(limiter.SlidingWindow, 3)
	good := limiter.Hit{Key: "good", Policy: p, N: 1}
	for _, c := range []struct {
		room int
		want string
		hits []limiter.Hit
	}{
		{2, "hits[1].N: must not be 0; set Look if the hit is only to look", []limiter.Hit{good, {Key: "free", Policy: p}}},
		{
			1, "hits[0].Look: a hit that only looks has no cost, got N 1",
			[]limiter.Hit{{Key: "free", Policy: p, N: 1, Look: true}},
		},
		{1, "there are 2 hits, and out has room for 1 answers", []limiter.Hit{good, good}},
		{2, "hits[1].Policy: must be set", []limiter.Hit{good, {Key: "k", N: 1}}},
		{1, "hits[0].Policy: must be set", []limiter.Hit{{Key: "k", Policy: &limiter.Policy{}, N: 1}}},
		{2, "hits[1].N: must be between", []limiter.Hit{good, {Key: "k", Policy: p, N: limiter.MaxHits + 1}}},
		{1, "hits[0].N: must be between", []limiter.Hit{{Key: "k", Policy: p, N: math.MaxInt64}}},
		{1, "hits[0].N: must be between", []limiter.Hit{{Key: "k", Policy: p, N: math.MinInt64}}},
		{
			2, "hits[1].Mode: must be Enforce, Shadow or Quota, got 3",
			[]limiter.Hit{good, {Key: "k", Policy: p, N: 1, Mode: 3}},
		},
		{
			3, `hits[1] and hits[2] have the same key, "k", and do not count alike`,
			[]limiter.Hit{good, {Key: "k", Policy: log, N: 1}, {Key: "k", Policy: window, N: 1}},
		},
	} {
		err := f.store.Take(f.Context(), c.hits, make([]limiter.Decision, c.room))
		if !errors.Is(err, limiter.ErrInvalid) || errors.Is(err, limiter.ErrUnavailable) ||
			!strings.Contains(err.Error(), c.want) {
			f.Errorf("%v, want ErrInvalid: %s", err, c.want)
		}
	}
	many := make([]limiter.Hit, 50)
	for i := range many {
		many[i] = limiter.Hit{Key: fmt.Sprint("many ", i), Policy: log, N: 1}
	}
	many[49] = limiter.Hit{Key: "many 7", Policy: window, N: 1}
	if err := f.store.Take(f.Context(), many, make([]limiter.Decision, 50)); !errors.Is(err, limiter.ErrInvalid) {
		f.Errorf("one key of two algorithms among many: %v, want ErrInvalid", err)
	}
	f.remaining("good", p, 3)
	f.want("+", limiter.Hit{Key: "k", Policy: log, N: 1})
	f.remaining("many 7", log, 3)
}

func ban(f *fixture) {
	for _, a := range every {
		p := f.hourly(a, 0)
		denied := limiter.Decision{RetryAfter: limiter.Never, ResetAfter: untilReset(p)}
		for _, n := range []int64{1, 0, limiter.MaxHits} {
			if d := f.take(limiter.Hit{Key: a.String(), Policy: p, N: n, Look: n == 0})[0]; d != denied {
				f.Errorf("%s, limit 0, cost %d: %s", a, n, cmp.Diff(denied, d))
			}
		}
		f.want("+", limiter.Hit{Key: a.String(), Policy: p, N: -1})
		f.want("-", limiter.Hit{Key: a.String(), Policy: p, N: 1})
	}
}

func costAboveCapacity(f *fixture) {
	for _, a := range counting {
		p := policy(f, limiter.Params{Algorithm: a, Limit: 4, Window: time.Hour, ChargeDenied: limiter.ChargeNone})
		for _, n := range []int64{5, limiter.MaxHits} {
			want := limiter.Decision{Remaining: 4, RetryAfter: limiter.Never, ResetAfter: untilReset(p)}
			if d := f.take(limiter.Hit{Key: a.String(), Policy: p, N: n, Look: n == 0})[0]; d != want {
				f.Errorf("%s, cost %d of 4: %s", a, n, cmp.Diff(want, d))
			}
		}
		f.want("+", limiter.Hit{Key: a.String(), Policy: p, N: 4})
		if d := f.take(limiter.Hit{Key: a.String(), Policy: p, N: 4})[0]; d.Allowed || d.RetryAfter == limiter.Never {
			f.Errorf("%s, cost 4 of 4 twice: got %+v, want a denial that ends", a, d)
		}
	}
}

func keys(f *fixture) {
	p := f.hourly(limiter.Funnel, 1)
	for _, key := range []string{
		"", "a", "A", "a ", "a\x00", "\xff\xfe", "a:b", "a{b}c", "{", "a\r\nb", "*", "ключ", strings.Repeat("k", 4096),
		strings.Repeat("k", 4095),
	} {
		f.want("+", limiter.Hit{Key: key, Policy: p, N: 1})
		f.want("-", limiter.Hit{Key: key, Policy: p, N: 1})
	}
}

func manyHits(f *fixture) {
	const n = 50
	var hits []limiter.Hit
	for i := range n {
		a := algorithms[i%len(algorithms)]
		hits = append(hits, limiter.Hit{Key: fmt.Sprint("many ", i), Policy: f.hourly(a, 2), N: 1})
	}
	f.want(strings.Repeat("+", n), hits...)
	f.want(strings.Repeat("+", n), hits...)
	f.want(strings.Repeat("-", n), hits...)
}
