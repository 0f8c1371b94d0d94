package store_test

import (
	"bufio"
	"context"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/store"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/internal/test/storetest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

func TestNoScripts(t *testing.T) {
	for _, tc := range []struct {
		url        string
		flag, want bool
	}{
		{"redis://h", false, false},
		{"redis://h", true, true},
		{"redis://h?scripts=true", true, false},
		{"redis://h?scripts=false", false, true},
		{"memory", true, false},
	} {
		if got := store.NoScripts(tc.url, tc.flag); got != tc.want {
			t.Errorf("NoScripts(%s, %t) is %t", tc.url, tc.flag, got)
		}
	}
	_, err := store.Connect(store.RedisOptions{URL: "redis+cluster://h", NoScripts: true})
	if err == nil || !strings.Contains(err.Error(), "leave out --no-store-scripts") {
		t.Errorf("a cluster without scripts: %v", err)
	}
}

// minutely is a policy of limit hits a minute.
func minutely(t *testing.T, limit int64) *limiter.Policy {
	t.Helper()
	p, err := limiter.NewPolicy(limiter.Params{Algorithm: limiter.FixedWindow, Limit: limit, Window: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A user with a password who may count, and nothing else, is enough. No denial is cached.
func TestRightsWithoutScripts(t *testing.T) {
	server := redistest.Start(t, strings.Fields("--user default off --user weir on >secret ~weir:* +incrby +pexpire +get")...)
	r := storetest.Connect(t, store.RedisOptions{
		URL: "redis://weir:secret@" + server.Addr() + "/0", NoScripts: true, Timeout: patient,
	})
	s, err := store.Open(&store.Options{
		Redis: r, CachedDenials: true, MaxKeys: 10, Requests: func() uint64 { return 0 }, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Run(ctx)
	}()
	if err := s.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	if s.Denials != nil {
		t.Error("denials are cached, though no refund is heard of")
	}
	p, allowed := minutely(t, 2), 0
	for range 4 {
		var out [1]limiter.Decision
		if err := s.Take(t.Context(), []limiter.Hit{{Key: "k", Policy: p, N: 1}}, out[:]); err != nil {
			t.Fatal(err)
		}
		if out[0].Allowed {
			allowed++
		}
	}
	if allowed < 2 || allowed > 4 { // a minute may have ended
		t.Errorf("%d requests are allowed", allowed)
	}
	cancel()
	<-ended
}

// Without scripts, a connection begins with nothing that twemproxy does not know.
func TestNothingIsSentFirst(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // nothing is written
	commands := make(chan string, 100)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close() //nolint:errcheck // nothing is left to write
		read := bufio.NewScanner(conn)
		for read.Scan() {
			line := read.Text()
			if strings.Trim(line, "*$0123456789") == "" {
				continue
			}
			commands <- line
			if line == "secret" {
				_, _ = conn.Write([]byte("+OK\r\n"))
			}
		}
	}()
	r := storetest.Connect(t, store.RedisOptions{
		URL: "redis://:secret@" + l.Addr().String(), NoScripts: true, Timeout: patient,
	})
	s, err := r.Counters(redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Take(ctx, []limiter.Hit{{Key: "k", Policy: minutely(t, 2), N: 1}}, make([]limiter.Decision, 1))
	}()
	var got []string
	for range 3 {
		got = append(got, <-commands)
	}
	if want := "auth secret incrby"; strings.Join(got, " ") != want {
		t.Errorf("the connection begins with %v, want %s", got, want)
	}
	cancel()
	<-done
}
