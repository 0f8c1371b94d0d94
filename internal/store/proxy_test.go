package store_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/limitertest"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// Behind a proxy that spreads keys over two servers, requests with several limits are decided as by one server, because
// each script call has one key.
func TestProxies(t *testing.T) {
	for name, start := range map[string]func(tb testing.TB, servers ...*redistest.Server) string{
		"Envoy": redistest.EnvoyProxy, "twemproxy": redistest.Twemproxy,
	} {
		t.Run(name, func(t *testing.T) {
			servers := []*redistest.Server{redistest.Start(t), redistest.Start(t)}
			addr, stores := start(t, servers...), 0
			fresh := func(t *testing.T, clock *limitertest.Clock) limiter.Store {
				t.Helper()
				stores++
				o := redisstore.Options{KeyPrefix: fmt.Sprintf("t%d:", stores), Timeout: patient}
				if clock != nil {
					o.Now = clock.Now
				}
				s, err := connect(t, "redis://"+addr+"/0?proxy=true", o).Counters("")
				if err != nil {
					t.Fatal(err)
				}
				return s
			}
			t.Run("contract", func(t *testing.T) { limitertest.Run(t, fresh) })
			t.Run("scripts agree with Go", func(t *testing.T) {
				limitertest.HistoriesInTwoSteps(t, fresh, casetest.Pick(20, 300))
			})
			t.Run("a server forgets the scripts", func(t *testing.T) { proxiedFlush(t, fresh(t, nil), servers) })
		})
	}
}

// proxiedFlush has servers forget the scripts: no hit is lost, and none counts twice.
func proxiedFlush(t *testing.T, s limiter.Store, servers []*redistest.Server) {
	p, err := limiter.NewPolicy(limiter.Params{Algorithm: limiter.FixedWindow, Limit: 30, Window: 1000 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	var hits []limiter.Hit
	for i := range 40 { // a hash like twemproxy's changes little with the last characters
		hits = append(hits, limiter.Hit{Key: fmt.Sprintf("fixed_window:%d|shop|client=ann", i), Policy: p, N: 1})
	}
	out := make([]limiter.Decision, len(hits))
	for want := p.Limit() - 1; want >= 0; want-- {
		if want%10 == 0 {
			for _, server := range servers {
				redistest.Do(t, server, "script", "flush")
			}
		}
		if err := s.Take(t.Context(), hits, out); err != nil {
			t.Fatal(err)
		}
		for i, d := range out {
			if !d.Allowed || d.Remaining != want {
				t.Fatalf("%s: %+v, want %d remaining", hits[i].Key, d, want)
			}
		}
	}
	for _, server := range servers {
		if keys := fmt.Sprint(redistest.Do(t, server, "keys", "*fixed_window:*")); !strings.Contains(keys, "ann") {
			t.Errorf("%s has no counter: they are not spread", server.Addr())
		}
	}
}
