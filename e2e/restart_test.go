//go:build e2e

package e2e

import (
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

const endless = "domain: shop\n" +
	"descriptors: [{key: remote_address, rate_limit: {requests_per_unit: 1000000, unit: second}}]\n"

// Two processes behind one Envoy restart in turn, as in a rolling update. Envoy, which would answer 500 for every
// failed call, answers 200 throughout: a stopping process first fails its health checks, then answers what is in
// flight.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	file := ruleFile(t, endless)
	var weirs []*weir
	p := proxy{Domain: "shop", HealthChecks: true}
	for range 2 {
		s := startWeir(t, file, "--store", redis.URL(), "--store-timeout", "1s")
		weirs = append(weirs, s)
		p.Weir = append(p.Weir, s.GRPC)
	}
	e := p.start(t)
	healthy := func(n uint64) func() bool {
		return func() bool { return e.Stat("cluster.weir.membership_healthy") == n }
	}
	proctest.Eventually(t, "both healthy", healthy(2))
	traffic := newClient(t, "127.0.0.1", e.Listener("front")).goOn(t, "/")
	for _, s := range weirs {
		since := time.Now()
		proctest.Eventually(t, "any traffic", func() bool { return traffic.count(200, since) > 100 })
		if code := s.Terminate(proctest.Patience); code != 0 {
			t.Errorf("a process ended with exit code %d, want 0", code)
		}
		t.Logf("stopped in %s", time.Since(since).Round(time.Millisecond))
		s.Start()
		proctest.Eventually(t, "both healthy again", healthy(2))
	}
	samples := traffic.stop()
	if got := tally(samples); got[200] != len(samples) {
		t.Errorf("statuses %v, want only 200", got)
	}
	t.Logf("%d requests, the longest took %s", len(samples), longest(samples))
}
