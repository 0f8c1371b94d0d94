package store_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/internal/store"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// setter returns a call that sets a key, on a client with the timeout of requests, as that of a process that serves.
func setter(t *testing.T, url string) func() error {
	t.Helper()
	r := connect(t, store.RedisOptions{URL: url})
	return func() error {
		return r.Call(t.Context(), "weir:1:doc", 5*time.Second, func(c redis.UniversalClient) error {
			return c.Set(t.Context(), "weir:1:doc", "text", 0).Err()
		})
	}
}

// A call may take longer than a request may.
func TestCallsHaveATimeOfTheirOwn(t *testing.T) {
	for name, start := range map[string]func(*testing.T) (url string, servers []*redistest.Server){
		"server": func(t *testing.T) (string, []*redistest.Server) {
			t.Helper()
			s := redistest.Start(t)
			return s.URL(), []*redistest.Server{s}
		},
		"cluster": func(t *testing.T) (string, []*redistest.Server) {
			t.Helper()
			c := redistest.StartCluster(t, 3)
			return c.URL(), c.Masters
		},
	} {
		t.Run(name, func(t *testing.T) {
			url, servers := start(t)
			set := setter(t, url)
			redistest.Await(t, set)
			for _, s := range servers {
				s.Pause()
				time.AfterFunc(500*time.Millisecond, s.Resume)
			}
			if err := set(); err != nil {
				t.Errorf("a call of half a second: %v", err)
			}
		})
	}
}

// A call for which a connection must be made first may take longer than a request may, too.
func TestConnectingHasTheTimeOfTheCall(t *testing.T) {
	server := redistest.Start(t)
	set := setter(t, server.URL())
	server.Pause()
	time.AfterFunc(500*time.Millisecond, server.Resume)
	if err := set(); err != nil {
		t.Errorf("a call that waits half a second for its connection: %v", err)
	}
}
