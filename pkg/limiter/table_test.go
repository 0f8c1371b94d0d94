package limiter_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

// TestEveryAlgorithmIsComplete: each line of the table has a Go file, an oracle, a Lua twin, and a page of
// docs/algorithms. CONTRIBUTING.md lists them for whoever adds an algorithm.
func TestEveryAlgorithmIsComplete(t *testing.T) {
	for _, a := range limiter.Algorithms() {
		t.Run(a.String(), func(t *testing.T) {
			for _, atOnce := range []bool{false, true} {
				in := limiter.Params{Algorithm: a, Limit: 10, Window: time.Second, RefillsAtOnce: atOnce}
				if atOnce && !a.Takes("refill") {
					continue
				}
				p := mustPolicy(t, in)
				if newOracle(in, p) == nil {
					t.Errorf("oracle_test.go has no oracle of %s", a)
				}
				if lua := "redisstore/lua/" + p.Core().Script + ".lua"; !exists(lua) {
					t.Errorf("there is no %s: the Lua twin of the step", lua)
				}
			}
			if file := a.String() + ".go"; !exists(file) {
				t.Errorf("there is no %s", file)
			}
			if page := "../../docs/algorithms/" + strings.ReplaceAll(a.String(), "_", "-") + ".md"; !exists(page) {
				t.Errorf("there is no %s", page)
			}
		})
	}
}

// TestCounter: after 3 of 10 hits, each algorithm says by its own word what is used, or what is left. A queue admits
// the first request at once, whatever it costs.
func TestCounter(t *testing.T) {
	want := map[limiter.Algorithm]string{
		limiter.FixedWindow: "count 3", limiter.SlidingLog: "count 3", limiter.SlidingWindow: "count 3",
		limiter.Funnel:     "level 3",
		limiter.LeakyQueue: "queued 0", limiter.Concurrency: "in_use 3", limiter.TokenBucket: "tokens 7",
		limiter.SmoothBursty: "stored 8", limiter.SmoothWarmingUp: "stored 0",
	}
	for _, a := range limiter.Algorithms() {
		p := mustPolicy(t, limiter.Params{Algorithm: a, Limit: 10, Window: time.Second})
		_, d := storekit.Step(p, storekit.State{}, epoch, 3)
		name, hits := limit.Counter(p, &d)
		if got := fmt.Sprint(name, " ", hits); got != want[a] {
			t.Errorf("%s: %s, want %s", a, got, want[a])
		}
	}
	p := mustPolicy(t, limiter.Params{Algorithm: limiter.SlidingWindow, Limit: 10, Window: time.Second, SegmentCap: 5})
	if name, hits := limit.Counter(p, &limiter.Decision{Remaining: 1}); name != "" || hits != 0 {
		t.Errorf("4 of a segment's 5 are shown as %s %d of the window", name, hits)
	}
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}
