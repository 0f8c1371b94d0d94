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

// An error is either what the server says, or that it says nothing.
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
		s := open(t, redisstore.Options{URL: st.url, Timeout: 200 * time.Millisecond})
		var out [1]limiter.Decision
		err := s.Take(t.Context(), []limiter.Hit{{Key: "k", Policy: funnel(t, 5, time.Second), N: 1}}, out[:])
		if !errors.Is(err, limiter.ErrUnavailable) || redisstore.Answered(err) != st.want {
			t.Errorf("%s: Answered(%v) = %t, want %t", st.name, err, redisstore.Answered(err), st.want)
		}
	}
}

// However often connecting has failed, a server that is back is found by the next call, and the errors until then say why.
func TestServerIsFoundAtOnce(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, redisstore.Options{URL: server.URL(), Timeout: time.Second, PoolSize: 2})
	hit := []limiter.Hit{{Key: "k", Policy: funnel(t, 1000, time.Hour), N: 1}}
	var out [1]limiter.Decision
	server.Kill()
	for range 20 {
		if err := s.Take(t.Context(), hit, out[:]); err == nil {
			t.Fatal("a dead server answered")
		}
	}
	server.Restart()
	if err := s.Take(t.Context(), hit, out[:]); err != nil {
		t.Errorf("after the server's return: %v", err)
	}
}

// Connections have a name, with and without a password.
func TestName(t *testing.T) {
	server := redistest.Start(t)
	c := client(t, server)
	named := func(url string, want int) {
		t.Helper()
		s := open(t, redisstore.Options{URL: url})
		take(t, s, "k", funnel(t, 1000, time.Hour), 1)
		list, err := c.ClientList(t.Context()).Result()
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(list, " name=weir "); n != want {
			t.Errorf("%d connections are named weir, want %d:\n%s", n, want, list)
		}
	}
	named(server.URL(), 1)
	if err := c.Do(t.Context(), "acl", "setuser", "weir", "on", ">secret", "~*", "&*", "+@all").Err(); err != nil {
		t.Fatal(err)
	}
	named("redis://weir:secret@"+server.Addr(), 2)
}
