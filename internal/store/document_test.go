package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/internal/store"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/internal/test/storetest"
)

// connect makes a client with the timeout of requests, as that of a process that serves.
func connect(t *testing.T, url string) *store.Redis {
	t.Helper()
	return storetest.Connect(t, store.RedisOptions{URL: url})
}

// watch follows a document until the test ends.
func watch(t *testing.T, d *store.Document) <-chan struct{} {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	hints, ended := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(ended)
		d.Watch(ctx, hints)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return hints
}

func awaitHint(t *testing.T, hints <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-hints:
	case <-time.After(5 * time.Second):
		t.Fatalf("no hint %s", what)
	}
}

// A document has a hint for its connection and for each publication.
func TestHints(t *testing.T) {
	server := redistest.Start(t)
	d := store.NewDocument(connect(t, server.URL()), store.DocumentOptions{Name: "a", Timeout: time.Second})
	hints := watch(t, d)
	awaitHint(t, hints, "of the connection")
	redistest.Do(t, server, "publish", "weir:1:a", "")
	awaitHint(t, hints, "of a publication")
}

// There are hints while Redis cannot be reached.
func TestHintsWithoutRedis(t *testing.T) {
	d := store.NewDocument(connect(t, "redis://127.0.0.1:1"), store.DocumentOptions{Name: "a", Timeout: time.Second})
	d.Looked(context.DeadlineExceeded)
	hints := watch(t, d)
	for range 2 {
		awaitHint(t, hints, "without Redis")
	}
}

// A call on a document may take longer than a request may.
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
			d := store.NewDocument(connect(t, url), store.DocumentOptions{Name: "doc", Timeout: 5 * time.Second})
			set := func() error {
				return d.Do(t.Context(), func(c redis.UniversalClient) error {
					return c.Set(t.Context(), d.Key(), "text", 0).Err()
				})
			}
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
	d := store.NewDocument(connect(t, server.URL()), store.DocumentOptions{Name: "doc", Timeout: 5 * time.Second})
	server.Pause()
	time.AfterFunc(500*time.Millisecond, server.Resume)
	err := d.Do(t.Context(), func(c redis.UniversalClient) error { return c.Set(t.Context(), d.Key(), "text", 0).Err() })
	if err != nil {
		t.Errorf("a call that waits half a second for its connection: %v", err)
	}
}
