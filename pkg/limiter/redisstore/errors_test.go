package redisstore_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// An error is either a reply of the server, or says that there was no reply.
func TestAnswered(t *testing.T) {
	server := redistest.Start(t)
	locked := redistest.Start(t, "--requirepass", "secret")
	c := client(t, server)
	config := func(name, value string) {
		t.Helper()
		if err := c.ConfigSet(t.Context(), name, value).Err(); err != nil {
			t.Fatal(err)
		}
	}
	steps := []struct {
		name string
		do   func()
		url  string
		want bool
	}{
		{"no right", func() {
			if err := c.Do(t.Context(), "acl", "setuser", "poor", "on", ">p", "~*", "+@all", "-set").Err(); err != nil {
				t.Fatal(err)
			}
		}, strings.Replace(server.URL(), "://", "://poor:p@", 1), true},
		{"no memory", func() { config("maxmemory", "1") }, server.URL(), true},
		{"no password", func() { config("maxmemory", "0") }, locked.URL(), true},
		{"a server that hangs", server.Pause, server.URL(), false},
		{"no server", server.Kill, server.URL(), false},
	}
	for _, st := range steps {
		st.do()
		timeout := 200 * time.Millisecond
		if st.want {
			timeout = patient
		}
		s := open(t, st.url, redisstore.Options{Timeout: timeout})
		var out [1]limiter.Decision
		err := s.Take(t.Context(), []limiter.Hit{{Key: "k", Policy: funnel(t, 5, time.Second), N: 1}}, out[:])
		if !errors.Is(err, limiter.ErrUnavailable) || redisstore.Answered(err) != st.want {
			t.Errorf("%s: Answered(%v) = %t, want %t", st.name, err, redisstore.Answered(err), st.want)
		}
	}
}

// TestPanicIsAnError checks that a panic in a call is an error of the requests of that call, and does not affect later
// requests.
func TestPanicIsAnError(t *testing.T) {
	s := open(t, "redis://127.0.0.1:1/0", redisstore.Options{Now: func() int64 { panic("no time") }})
	p := funnel(t, 1, time.Second)
	for range 3 {
		err := s.Take(t.Context(), []limiter.Hit{{Key: "k", Policy: p, N: 1}}, make([]limiter.Decision, 1))
		if !errors.Is(err, limiter.ErrUnavailable) || !strings.Contains(err.Error(), "no time") {
			t.Errorf("Take: %v, want an ErrUnavailable that says why", err)
		}
	}
	if err := s.Ping(t.Context()); !errors.Is(err, limiter.ErrUnavailable) {
		t.Errorf("Ping: %v, want an ErrUnavailable", err)
	}
}
