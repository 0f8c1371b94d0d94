//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// patience is the longest that a request may take while Redis hangs: the store's timeout is at most 500 ms, the rest is
// for a busy machine.
const patience = 40 * time.Second

// proxies are real ones that spread keys over servers.
var proxies = map[string]func(tb testing.TB, servers ...*redistest.Server) string{
	"Envoy": redistest.EnvoyProxy, "twemproxy": redistest.Twemproxy,
}

// Behind a proxy that spreads keys over two servers, two processes share every counter, no limit lets more pass than it
// says, and a proxy whose servers hang leaves it to on_store_failure.
func TestBehindAProxy(t *testing.T) {
	t.Parallel()
	for name, start := range proxies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers := []*redistest.Server{redistest.Start(t), redistest.Start(t)}
			rules := ruleFile(t, `
domain: shop
descriptors:
  - {key: client, rate_limit: {requests_per_unit: 8, unit: year}}
  - {key: closed, rate_limit: {requests_per_unit: 1000000, unit: year, on_store_failure: deny}}
  - key: several
    rate_limits:
      - {name: years, requests_per_unit: 5, unit: year, charge_denied: none}
      - {name: months, requests_per_unit: 1000, unit: month, align: calendar, charge_denied: none}
      - {name: log, algorithm: sliding_log, requests_per_unit: 5, unit: day}
      - {name: funnel, algorithm: funnel, requests_per_unit: 1000, unit: year}
`)
			store := "redis://" + start(t, servers...) + "/0?proxy=true"
			var fleet []*weir
			for range 2 {
				fleet = append(fleet, startWeir(t, rules, "--store", store, "--store-timeout", "2s"))
			}
			// So many clients that a proxy spreads them whatever ports the servers have; requests of each to each process.
			const clients, requests, limit = 40, 6, 8
			var admitted [clients]atomic.Int64
			var wait sync.WaitGroup
			for _, s := range fleet {
				service := s.client(t)
				for c := range clients {
					wait.Go(func() {
						for range requests {
							if overLimit(t, service, "client", clientOf(c)) == pb.RateLimitResponse_OK {
								admitted[c].Add(1)
							}
						}
					})
				}
			}
			wait.Wait()
			for c := range admitted {
				if n := admitted[c].Load(); n != limit {
					t.Errorf("client %d had %d requests admitted, want %d", c, n, limit)
				}
			}
			for _, s := range servers {
				if n := keysOf(t, s); n == 0 || n == clients {
					t.Errorf("%s has %d keys: they are not spread", s.Addr(), n)
				}
			}
			for i := range 7 {
				want := pb.RateLimitResponse_OK
				if i >= 5 {
					want = pb.RateLimitResponse_OVER_LIMIT
				}
				if got := overLimit(t, fleet[i%2].client(t), "several", "ann"); got != want {
					t.Errorf("request %d over several limits: %s, want %s", i, got, want)
				}
			}
			testResetBehindAProxy(t, fleet[0])

			for _, s := range servers {
				s.Pause()
			}
			hung := startHung(t, rules, store)
			for key, want := range map[string]pb.RateLimitResponse_Code{
				"client": pb.RateLimitResponse_OK, "closed": pb.RateLimitResponse_OVER_LIMIT,
			} {
				began := time.Now()
				if got := overLimit(t, hung.client(t), key, "x"); got != want || time.Since(began) > patience {
					t.Errorf("%s while the servers hang: %s after %s, want %s", key, got, time.Since(began), want)
				}
			}
			for _, s := range servers {
				s.Resume()
			}
			proctest.Eventually(t, "counted again", func() bool {
				return hung.Ready(t.Context()) == nil && overLimit(t, hung.client(t), "client", clientOf(0)) == pb.RateLimitResponse_OVER_LIMIT
			})
		})
	}
}

// startHung starts a process whose store hangs, with the default timeout.
func startHung(t *testing.T, rules, store string) *weir {
	t.Helper()
	s := newWeir(t, rules, "--store", store)
	s.Launch()
	s.Await(proctest.Patience, func() error {
		_, err := s.client(t).ShouldRateLimit(t.Context(), question("nothing", "x"))
		return err
	})
	return s
}

// testResetBehindAProxy looks at a counter and resets it.
func testResetBehindAProxy(t *testing.T, s *weir) {
	t.Helper()
	client := "client=" + clientOf(3)
	out, err := proctest.RunWeir(t, "get", "--server", s.HTTP, "--domain", "shop", client)
	if err != nil || !strings.Contains(out, "fixed_window|shop|"+client) {
		t.Errorf("weir get: %v\n%s", err, out)
	}
	for overLimit(t, s.client(t), "client", clientOf(3)) == pb.RateLimitResponse_OK { //nolint:revive // until the limit
	}
	if out, err = proctest.RunWeir(t, "reset", "--server", s.Socket(), "--domain", "shop", client); err != nil {
		t.Errorf("weir reset: %v\n%s", err, out)
	}
	if got := overLimit(t, s.client(t), "client", clientOf(3)); got != pb.RateLimitResponse_OK {
		t.Errorf("after a reset: %s\n%s", got, out)
	}
}

// clientOf names a client so that hashes of the names differ widely: twemproxy's hash changes little with the last
// characters.
func clientOf(i int) string { return fmt.Sprintf("%d-of-the-clients", i) }

// overLimit asks for one request of a client.
func overLimit(t *testing.T, service pb.RateLimitServiceClient, key, value string) pb.RateLimitResponse_Code {
	t.Helper()
	res, err := service.ShouldRateLimit(context.WithoutCancel(t.Context()), question(key, value))
	if err != nil {
		t.Error(err)
	}
	return res.GetOverallCode()
}

// keysOf returns the number of counters in a server.
func keysOf(t *testing.T, server *redistest.Server) int {
	t.Helper()
	keys, err := redistest.Client(t, server.URL(), 5*time.Second).Keys(t.Context(), "weir:1:fixed_window|*").Result()
	if err != nil {
		t.Fatal(err)
	}
	return len(keys)
}
