//go:build e2e

package rlqs

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/envoytest"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/internal/test/weirtest"
)

const (
	// rate is the limit of most rules in requests a second, and burst what a bucket or funnel holds.
	rate, burst = 50, 50
	// late is what a busy machine may delay an assignment by. What Envoy lets pass meanwhile was not charged yet.
	late = time.Second
)

// weirRules has a rule for each test: the value of the entry "bucket" is the test's name.
const weirRules = `
domain: shop
descriptors:
  - {key: bucket, value: token_bucket, rate_limit: {algorithm: token_bucket, requests_per_unit: 50, unit: second, burst: 50}}
  - {key: bucket, value: large, rate_limit: {algorithm: funnel, requests_per_unit: 1000, unit: second}}
  - {key: bucket, rate_limit: {requests_per_unit: 50, unit: second}}
`

// decided is a request that Envoy decided, at some time between these.
type decided struct{ began, ended time.Time }

// offer sends requests until it is to stop: each client one every pause at most. It returns those that were admitted,
// and those that were denied.
func offer(
	t *testing.T, stop <-chan struct{}, pause time.Duration, clients []*client, bucket string,
) (admitted, denied []decided) {
	t.Helper()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, c := range clients {
		wg.Go(func() {
			every := time.NewTicker(pause)
			defer every.Stop()
			for {
				began := time.Now()
				r, err := c.Try(t, "", "x-settings", "deny", "x-bucket", bucket)
				switch {
				case err != nil:
					t.Error(err)
					return
				case r.Status == http.StatusOK:
					mu.Lock()
					admitted = append(admitted, decided{began, time.Now()})
					mu.Unlock()
				case r.Status == http.StatusTooManyRequests:
					mu.Lock()
					denied = append(denied, decided{began, time.Now()})
					mu.Unlock()
				default:
					t.Errorf("status %d", r.Status)
				}
				select {
				case <-every.C:
				case <-stop:
					return
				}
			}
		})
	}
	wg.Wait()
	return admitted, denied
}

// beyond returns by how many requests a limit was exceeded at most: of those that were for certain admitted within a
// span, what is more than the limit's rate in that span, the largest of all spans.
func beyond(admitted []decided, rate float64) (most float64) {
	byEnd := slices.Clone(admitted)
	slices.SortFunc(byEnd, func(a, b decided) int { return a.ended.Compare(b.ended) })
	for _, from := range admitted {
		n := 0
		for _, d := range byEnd {
			if !d.began.Before(from.began) {
				n++
				most = max(most, float64(n)-rate*d.ended.Sub(from.began).Seconds())
			}
		}
	}
	return most
}

// within returns how many requests ended in a span.
func within(admitted []decided, from, to time.Time) (n int) {
	for _, d := range admitted {
		if d.ended.After(from) && !d.ended.After(to) {
			n++
		}
	}
	return n
}

// connections returns n clients with a connection each.
func connections(t *testing.T, e *envoytest.Envoy, listener string, n int) (all []*client) {
	t.Helper()
	for range n {
		all = append(all, newClient(t, e, listener))
	}
	return all
}

// ruleFile writes a rule file and returns its path.
func ruleFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rules.yaml")
	proctest.Replace(t, path, text)
	return path
}

// startWeir serves rules with quotas.
func startWeir(t *testing.T, rules string, args ...string) *weirtest.Process {
	t.Helper()
	w := weirtest.New(t, append([]string{"--quota", "--rules", rules}, args...)...)
	w.Start()
	return w
}

// frontOf is an Envoy whose listener "front" has quotas of the Weir at an address.
func frontOf(t *testing.T, node, weir string) *envoytest.Envoy {
	t.Helper()
	return envoytest.StartWith(t, bootstrap([]string{quotaListener("front", "shop", "weir", node)},
		[]string{cluster("weir", grpcOptions, weir)}), envoytest.Options{Workers: 2})
}

// settled is when an Envoy's first report of how much it has to do has come, and its share has followed. Until then it
// has a small one.
const settled = tick + 1500*time.Millisecond

// wantWithin fails the test if the requests exceed the limit by more than they may, or are far below it in the span
// from settled on.
func wantWithin(t *testing.T, admitted []decided, rate, mayExceed float64, began, ended time.Time, utilized float64) {
	t.Helper()
	got := beyond(admitted, rate)
	span := ended.Sub(began.Add(settled))
	used := float64(within(admitted, began.Add(settled), ended)) / (rate * span.Seconds())
	t.Logf("%d admitted in %s, %.0f beyond %.0f/s at most; may be %.0f; %.2f of the limit used in the last %s",
		len(admitted), ended.Sub(began), got, rate, mayExceed, used, span)
	if got > mayExceed {
		t.Errorf("%.0f beyond %.0f/s, want %.0f at most", got, rate, mayExceed)
	}
	if used < utilized {
		t.Errorf("%.2f of the limit used, want at least %.2f", used, utilized)
	}
}

// after is closed after a while, or when the test ends.
func after(t *testing.T, while time.Duration) <-chan struct{} {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), while)
	t.Cleanup(cancel)
	return ctx.Done()
}

// perSecond returns how many of the requests were admitted in each second since a moment.
func perSecond(admitted []decided, from time.Time, seconds int) (n []int) {
	for s := range seconds {
		at := from.Add(time.Duration(s) * time.Second)
		n = append(n, within(admitted, at, at.Add(time.Second)))
	}
	return n
}

// TestAtOnce has an Envoy that is alone get most of a limit of 1,000 a second at once, and then one that comes beside
// it get a part. What they get is compared with what they ask for: 800 and 500 a second, and less on a busy machine.
func TestAtOnce(t *testing.T) {
	weir := startWeir(t, ruleFile(t, weirRules))
	alone, other := frontOf(t, "a", weir.GRPC), frontOf(t, "b", weir.GRPC)
	const pause = 20 * time.Millisecond
	var denied, denied2 []decided
	var admitted, admitted2 []decided
	began, stop := time.Now(), make(chan struct{})
	var wg sync.WaitGroup
	clients := connections(t, alone, "front", 16)
	wg.Go(func() { admitted, denied = offer(t, stop, pause, clients, "large") })
	time.Sleep(6 * time.Second)
	more := connections(t, alone, "front", 8)
	wg.Go(func() { admitted2, denied2 = offer(t, stop, pause, more, "large") })
	time.Sleep(6 * time.Second)
	came := time.Now()
	byOther, deniedOther := offer(t, after(t, 4*time.Second), pause, connections(t, other, "front", 10), "large")
	close(stop)
	wg.Wait()
	byAlone := slices.Concat(admitted, admitted2)
	first := perSecond(byAlone, began, 5)
	asked := perSecond(slices.Concat(byAlone, denied, denied2), began, 5)
	t.Logf("an Envoy alone admits %v of %v a second", first, asked)
	for i := 1; i < len(first); i++ {
		if 2*first[i] < asked[i] {
			t.Errorf("second %d: %d of %d, want at least half", i+1, first[i], asked[i])
		}
	}
	theirs, all := perSecond(byOther, came, 4), perSecond(append(byAlone, byOther...), came, 4)
	asked = perSecond(append(byOther, deniedOther...), came, 4)
	t.Logf("then one that comes admits %v of %v a second, both %v", theirs, asked, all)
	for i := range theirs {
		if i > 0 && 10*theirs[i] < 3*asked[i] || all[i] > 1150 {
			t.Errorf("in second %d after it came %d of %d, both %d; want at least 150 of 500, and at most 1,150", i, theirs[i],
				asked[i], all[i])
		}
	}
}

// TestFloodOfBuckets has a client invent buckets, more than an Envoy may have. Then an honest one is limited again.
func TestFloodOfBuckets(t *testing.T) {
	weir := startWeir(t, ruleFile(t, weirRules))
	envoy := frontOf(t, "a", weir.GRPC)
	const flood = 3000
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			c := newClient(t, envoy, "front")
			for n := range flood / 4 {
				c.get(t, "allow", fmt.Sprintf("invented-%d-%d", i, n))
			}
		})
	}
	wg.Wait()
	ended, c := time.Now(), newClient(t, envoy, "front")
	seconds := 0
	for ; seconds < 30; seconds++ {
		admitted, sent := 0, 0
		for at := time.Now(); time.Since(at) < time.Second; sent++ {
			if c.get(t, "allow", "honest") {
				admitted++
			}
		}
		if admitted <= 2*rate && sent > 3*rate {
			break
		}
	}
	took := time.Since(ended)
	t.Logf("limited %s after the flood; %v buckets, %v refused", took, weir.Metric(`weir_quota_buckets{state="assigned"}`),
		weir.Metric(`weir_quota_refused_total{reason="buckets"}`))
	if took > 11*time.Second {
		t.Errorf("an honest client is limited %s after the flood, want at most 10 s", took)
	}
	await(t, "invented buckets are forgotten", func() bool { return weir.Metric(`weir_quota_buckets{state="assigned"}`) < 500 })
}

// TestFleet has two Envoys get quotas of two replicas that share a Redis.
func TestFleet(t *testing.T) {
	t.Parallel()
	redis, rules := redistest.Start(t), ruleFile(t, weirRules)
	var clients []*client
	for _, name := range []string{"a", "b"} {
		weir := startWeir(t, rules, "--store", redis.URL(), "--store-timeout", "1s") // the time is not what is tested
		clients = append(clients, connections(t, frontOf(t, name, weir.GRPC), "front", 3)...)
	}
	began := time.Now()
	admitted, _ := offer(t, after(t, 2*settled), 20*time.Millisecond, clients, "token_bucket")
	own := burst + 2*burst/10 + rate*late.Seconds() // each replica may assign a tenth of the capacity
	wantWithin(t, admitted, rate, own, began, time.Now(), 0.4)
}
