package limiter_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

// TestUnknownNamesAreRefused: a program may give numbers that no name of a rule file stands for.
func TestUnknownNamesAreRefused(t *testing.T) {
	for want, in := range map[string]limiter.Params{
		"charge_denied: 9 is not known: use one of none, remaining, full": {
			Algorithm:    limiter.Funnel,
			ChargeDenied: 9,
		},
		"oldest: 9 is not known: use one of proportional, full, none": {
			Algorithm: limiter.SlidingWindow,
			Oldest:    9,
		},
		"initial: is not a parameter of funnel": {Algorithm: limiter.Funnel, StartsEmpty: true},
		"refill: is not a parameter of funnel":  {Algorithm: limiter.Funnel, RefillsAtOnce: true},
		"limit: must be 0 with DenyAll, got 5":  {Algorithm: limiter.Funnel, DenyAll: true},
		"align: 9 is not known: use one of epoch, first_hit, calendar": {
			Algorithm: limiter.FixedWindow,
			Align:     9,
		},
		"max_cost: must be between 0 and 4294967295, got -1": {
			Algorithm: limiter.SmoothBursty,
			MaxCost:   -1,
		},
		"max_cost: is not a parameter of funnel, which takes burst, charge_denied":          {Algorithm: limiter.Funnel, MaxCost: 1},
		"algorithm: must be one of " + strings.Join(step.Names(limiter.Algorithms()), ", "): {Algorithm: 99},
	} {
		in.Limit, in.Window = 5, time.Second
		if p, err := limiter.NewPolicy(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, %v; want %s", in, p, err, want)
		}
	}
}

// TestDecideTakesLinearTime, in the hits of a request, whether their keys differ or not, are denied or not: sixteen
// times the hits take less than 64 times as long. (With a scan for each hit, it was 256 times.) Times are the least of
// several, since what else the machine does only adds to them.
func TestDecideTakesLinearTime(t *testing.T) {
	p := mustPolicy(t, limiter.Params{Algorithm: limiter.Funnel, Limit: 1 << 20, Window: time.Hour})
	none := mustPolicy(t, limiter.Params{Algorithm: limiter.Funnel, DenyAll: true, Window: time.Hour})
	for name, keys := range map[string]int{"each a key of its own": 1 << 20, "few keys": 7, "one key": 1} {
		request := func(n int, last *limiter.Policy) func() time.Duration {
			hits, out, slots := make([]limiter.Hit, n), make([]limiter.Decision, n), make([]storekit.Counter, n)
			for i := range hits {
				hits[i] = limiter.Hit{
					Key: fmt.Sprintf("a key of some length %07d", i%keys), Policy: p, N: 1, Group: i,
					Mode: limiter.Mode(i % 3),
				}
			}
			hits[n-1] = limiter.Hit{Key: "denied", Policy: last, N: 1}
			return func() time.Duration {
				clear(slots)
				start := proctest.CPU(t)
				if err := storekit.Link(hits, out, slots); err != nil {
					t.Fatal(err)
				}
				storekit.Decide(oneClock(epoch), hits, slots, out)
				return proctest.CPU(t) - start
			}
		}
		for _, last := range []*limiter.Policy{p, none} {
			few, many := request(500, last), request(8_000, last)
			small, large := few(), many()
			for range 100 {
				if large < 64*small {
					break
				}
				small, large = min(small, few()), min(large, many())
			}
			if large >= 64*small {
				t.Errorf("%s, denied %t: 500 hits take %s, 8,000 %s", name, last == none, small, large)
			}
		}
	}
}

// TestLink is First for few hits, and for many.
func TestLink(t *testing.T) {
	p := mustPolicy(t, limiter.Params{Algorithm: limiter.Funnel, Limit: 5, Window: time.Hour})
	for _, n := range []int{0, 1, 2, 16, 17, 100} {
		hits, out, slots := make([]limiter.Hit, n), make([]limiter.Decision, n), make([]storekit.Counter, n)
		for i := range hits {
			hits[i] = limiter.Hit{Key: strconv.Itoa(i * i % 11), Policy: p, N: 1}
		}
		if err := storekit.Link(hits, out, slots); err != nil {
			t.Fatal(err)
		}
		for i := range hits {
			want := slices.IndexFunc(hits, func(h limiter.Hit) bool { return h.Key == hits[i].Key })
			if got := slots[i].First(); got != want {
				t.Errorf("%d hits: the first of hit %d is %d, want %d", n, i, got, want)
			}
		}
	}
}

// TestCheckAllocatesNothing for a request of ordinary size.
func TestCheckAllocatesNothing(t *testing.T) {
	p := mustPolicy(t, limiter.Params{Algorithm: limiter.Funnel, Limit: 5, Window: time.Hour})
	hits, out, slots := make([]limiter.Hit, 16), make([]limiter.Decision, 16), make([]storekit.Counter, 16)
	for i := range hits {
		hits[i] = limiter.Hit{Key: strconv.Itoa(i), Policy: p, N: 1}
	}
	if n := testing.AllocsPerRun(100, func() {
		if err := errors.Join(storekit.Check(hits, out), storekit.Link(hits, out, slots)); err != nil {
			t.Error(err)
		}
		storekit.Decide(oneClock(epoch), hits, slots, out)
	}); n > 0 {
		t.Errorf("%g allocations", n)
	}
}
