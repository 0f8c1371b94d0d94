package store_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
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

// Two documents hear of their own changes only, on one connection.
func TestHintsShareAConnection(t *testing.T) {
	server := redistest.Start(t)
	r := connect(t, server.URL())
	ctx, cancel := context.WithCancel(t.Context())
	var wait sync.WaitGroup
	hints := map[string]chan struct{}{}
	for _, name := range []string{"a", "b"} {
		c := make(chan struct{}, 1)
		hints[name] = c
		d := store.NewDocument(r, store.DocumentOptions{Name: name, Timeout: time.Second})
		d.Looked(nil)
		wait.Go(func() { d.Watch(ctx, c) })
	}
	defer wait.Wait()
	defer cancel()
	for name, c := range hints {
		select {
		case <-c: // the connection is made
		case <-time.After(5 * time.Second):
			t.Fatalf("no hint that %s has a connection", name)
		}
	}
	list := fmt.Sprint(redistest.Do(t, server, "client", "list", "type", "pubsub"))
	if n := strings.Count(list, "id="); n != 1 {
		t.Errorf("%d connections subscribe, want 1:\n%s", n, list)
	}
	redistest.Do(t, server, "publish", "weir:1:b", "")
	select {
	case <-hints["b"]:
	case <-time.After(5 * time.Second):
		t.Error("no hint of a publication")
	}
	select {
	case <-hints["a"]:
		t.Error("a hint of another document's publication")
	default:
	}
}

// A document that could not be read is hinted at until it can, and one with Poll after that time.
func TestHintsWithoutPublications(t *testing.T) {
	r := connect(t, "redis://127.0.0.1:1")
	for name, poll := range map[string]time.Duration{"away": 0, "poll": time.Millisecond} {
		d := store.NewDocument(r, store.DocumentOptions{Name: name, Timeout: time.Second, Poll: poll})
		if poll == 0 {
			d.Looked(context.DeadlineExceeded)
		} else {
			d.Looked(nil)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended, hints := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			d.Watch(ctx, hints)
		}()
		select {
		case <-hints:
		case <-time.After(5 * time.Second):
			t.Errorf("%s: no hint", name)
		}
		cancel()
		<-ended
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
