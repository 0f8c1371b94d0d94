//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

// goroutines is the number of goroutines that ask each process at the same time.
const goroutines = 64

// eachAlgorithm returns a rule file with a limit of every algorithm, by the entry {algorithm: its name}, at a rate
// such as "requests_per_unit: 10, unit: second". Each limit has the parameters, such as "burst: 5", that its
// algorithm knows.
func eachAlgorithm(rate string, params ...string) string {
	var b strings.Builder
	b.WriteString("domain: exact\ndescriptors:\n")
	params = append(params, "max_wait: 100ms", "lease: 1h") // what waits longer is of no use here
	for a := limiter.Algorithm(1); a.String() != ""; a++ {
		limit := fmt.Sprintf("algorithm: %s, %s", a, rate)
		if a == limiter.Concurrency {
			limit, _, _ = strings.Cut(limit, ", unit") // it has none
			limit, _, _ = strings.Cut(limit, ", window")
		}
		for _, param := range params {
			if name, _, _ := strings.Cut(param, ":"); a.Takes(name) && !strings.Contains(limit, name+":") {
				limit += ", " + param
			}
		}
		fmt.Fprintf(&b, "  - {key: algorithm, value: %s, rate_limit: {%s}}\n", a, limit)
	}
	return b.String()
}

// policies returns the policies of the rules, by algorithm.
func policies(t *testing.T, rules string) map[string]*limiter.Policy {
	t.Helper()
	set, err := rulefile.Compile([]rulefile.File{{Name: "rules.yaml", Data: []byte(rules)}})
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]*limiter.Policy{}
	for _, l := range set.Limits() {
		out[l.Policy.Algorithm().String()] = l.Policy
	}
	return out
}

// fleet is processes that share one limit.
type fleet []pb.RateLimitServiceClient

// startFleets are three processes on one Redis, and one with a memory of its own.
func startFleets(t *testing.T, rules string) map[string]fleet {
	t.Helper()
	file := ruleFile(t, rules)
	var redis fleet
	for store, n := redistest.Start(t).URL(), 0; n < 3; n++ {
		redis = append(redis, startWeir(t, file, "--store", store, "--store-timeout", "5s").client(t))
	}
	return map[string]fleet{"redis": redis, "memory": {startWeir(t, file).client(t)}}
}

// ask sends one hit of an algorithm's rule, and reports whether it was admitted.
func (f fleet) ask(ctx context.Context, client int, algorithm string) (bool, error) {
	resp, err := f[client%len(f)].ShouldRateLimit(ctx, &pb.RateLimitRequest{
		Domain: "exact",
		Descriptors: []*common.RateLimitDescriptor{{
			Entries: []*common.RateLimitDescriptor_Entry{{Key: "algorithm", Value: algorithm}},
		}},
	})
	return resp.GetOverallCode() == pb.RateLimitResponse_OK, err
}

// each runs 64 goroutines for each process. Each of them calls do with every algorithm in turn, until do is done.
func (f fleet) each(t *testing.T, do func(client int, algorithm string) (done bool, err error)) {
	t.Helper()
	names := step.Names(limiter.Algorithms())
	var wg sync.WaitGroup
	for client := range goroutines * len(f) {
		wg.Go(func() {
			for i := client; ; i++ { // not all begin with the same
				done, err := do(client, names[i%len(names)])
				if err != nil {
					t.Error(err)
				}
				if done || err != nil {
					return
				}
			}
		})
	}
	wg.Wait()
}

// Under a limit of 500 a year and more than 1,000 requests at once, exactly as many pass as the definition admits at
// one instant: no request comes between another one's look and its charge.
func TestExactlyTheLimit(t *testing.T) {
	rules := eachAlgorithm("requests_per_unit: 500, unit: year")
	limits := policies(t, rules)
	for store, f := range startFleets(t, rules) {
		t.Run(store, func(t *testing.T) {
			var mu sync.Mutex
			asked, admitted := map[string]int{}, map[string]int{}
			rounds, perClient := make([]int, goroutines*len(f)), 1100/(goroutines*len(f))+1
			f.each(t, func(client int, algorithm string) (bool, error) {
				ok, err := f.ask(t.Context(), client, algorithm)
				mu.Lock()
				defer mu.Unlock()
				asked[algorithm]++
				if ok {
					admitted[algorithm]++
				}
				rounds[client]++
				return rounds[client] == perClient*len(limits), err
			})
			for name, p := range limits {
				if want := atOneInstant(p, asked[name]); admitted[name] != want {
					t.Errorf("%s: %d of %d admitted, want %d", name, admitted[name], asked[name], want)
				}
			}
			t.Logf("admitted %v of %d each", admitted, asked["funnel"])
		})
	}
}

// atOneInstant returns how many of n requests pass if time stands still.
func atOneInstant(p *limiter.Policy, n int) (admitted int) {
	var s storekit.State
	for range n {
		var d limiter.Decision
		if s, d = storekit.Step(p, s, 1_767_225_600_000_000, 1); d.Allowed {
			admitted++
		}
	}
	return admitted
}

// No window of real time has more admitted than the algorithm's bound. What concurrency bounds is no window.
func TestNeverAboveTheBound(t *testing.T) {
	const window = 500 * time.Millisecond
	rules := eachAlgorithm("requests_per_unit: 50, window: 500ms")
	limits := policies(t, rules)
	delete(limits, limiter.Concurrency.String())
	for store, f := range startFleets(t, rules) {
		t.Run(store, func(t *testing.T) {
			passed := f.hammer(t, casetest.Pick(time.Second, 2*time.Second))
			for name, p := range limits {
				slices.SortFunc(passed[name], func(a, b decided) int { return a.began.Compare(b.began) })
				most, bound := mostWithin(passed[name], window), int(limit.Bound(p, 1))
				t.Logf("%s: %d admitted; worst window %d, bound %d", name, len(passed[name]), most, bound)
				if most > bound || most == 0 {
					t.Errorf("%s: %d in a window, want at most %d, and some", name, most, bound)
				}
			}
		})
	}
}

// hammer asks for as much as the processes can answer, and returns what was admitted.
func (f fleet) hammer(t *testing.T, length time.Duration) map[string][]decided {
	t.Helper()
	var mu sync.Mutex
	passed := map[string][]decided{}
	end := time.Now().Add(length)
	f.each(t, func(client int, algorithm string) (bool, error) {
		began := time.Now()
		ok, err := f.ask(t.Context(), client, algorithm)
		ended := time.Now()
		if ok {
			mu.Lock()
			passed[algorithm] = append(passed[algorithm], decided{began, ended})
			mu.Unlock()
		}
		return ended.After(end), err
	})
	return passed
}
