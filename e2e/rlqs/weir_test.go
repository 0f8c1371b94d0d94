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

	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// rate is the limit of most buckets in requests a second.
const rate = 50

const weirRules = `
domain: shop
descriptors:
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
func connections(t *testing.T, e *proctest.Envoy, listener string, n int) (all []*client) {
	t.Helper()
	for range n {
		all = append(all, newClient(t, e, listener))
	}
	return all
}

// startWeir serves weirRules with quotas.
func startWeir(t *testing.T, args ...string) *proctest.Weir {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rules.yaml")
	proctest.Replace(t, path, weirRules)
	w := proctest.NewWeir(t, append([]string{"--quota", "--rules", path}, args...)...)
	w.Start()
	return w
}

// frontOf is an Envoy whose listener "front" has quotas of the Weir at an address.
func frontOf(t *testing.T, weir string) *proctest.Envoy {
	t.Helper()
	return proctest.StartEnvoyWith(t, bootstrap([]string{quotaListener("front", "shop", "weir")},
		[]string{cluster("weir", grpcOptions, weir)}), proctest.EnvoyOptions{Workers: 2})
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
// Counters are in Redis.
func TestAtOnce(t *testing.T) {
	weir := startWeir(t, "--store", redistest.Start(t).URL(), "--store-timeout", "1s") // the time is not what is tested
	alone, other := frontOf(t, weir.GRPC), frontOf(t, weir.GRPC)
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
	weir := startWeir(t)
	envoy := frontOf(t, weir.GRPC)
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
	if took > 20*time.Second { // 10 s, twice as long on a busy machine
		t.Errorf("an honest client is limited %s after the flood, want at most 10 s", took)
	}
	proctest.Eventually(t, "invented buckets are forgotten", func() bool { return weir.Metric(`weir_quota_buckets{state="assigned"}`) < 500 })
}
