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

// invalidHits checks that invalid hits are errors that charge nothing, and that the store works after each of them.
func invalidHits(f *fixture) {
	p, log, window := f.hourly(limiter.Funnel, 3), f.hourly(limiter.SlidingLog, 3), f.hourly(limiter.SlidingWindow, 3)
	good := limiter.Hit{Key: "good", Policy: p, N: 1}
	for _, c := range []struct {
		room int
		want string
		hits []limiter.Hit
	}{
		{2, "hits[1].N: must not be 0; set Peek for a hit that only peeks", []limiter.Hit{good, {Key: "free", Policy: p}}},
		{
			1, "hits[0].Peek: a hit with Peek must have N 0, got N 1",
			[]limiter.Hit{{Key: "free", Policy: p, N: 1, Peek: true}},
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
			3, `hits[1] and hits[2] have the same key, "k", and count differently`,
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

// untilReset returns the ResetAfter of a counter that was never hit, at the start of an hour.
func untilReset(p *limiter.Policy) time.Duration {
	if p.Algorithm() == limiter.FixedWindow {
		return p.Window()
	}
	return 0
}

func ban(f *fixture) {
	for _, a := range every {
		p := f.hourly(a, 0)
		denied := limiter.Decision{RetryAfter: limiter.Never, ResetAfter: untilReset(p)}
		for _, n := range []int64{1, 0, limiter.MaxHits} {
			if d := f.take(limiter.Hit{Key: a.String(), Policy: p, N: n, Peek: n == 0})[0]; d != denied {
				f.Errorf("%s, limit 0, cost %d: %s", a, n, cmp.Diff(denied, d))
			}
		}
		f.want("+", limiter.Hit{Key: a.String(), Policy: p, N: -1})
		f.want("-", limiter.Hit{Key: a.String(), Policy: p, N: 1})
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
