package admin_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/admin"
	"github.com/weir-ratelimit/weir/internal/adminapi"
)

// eventServer serves until the test ends. Its History has no samples.
func eventServer(t *testing.T, o admin.Options, change func(*http.Server)) (addr string, s *http.Server) {
	t.Helper()
	if o.Rules == nil {
		o.Rules = &fakeRules{}
	}
	o.Metrics, o.Log = http.NotFoundHandler(), slog.New(slog.DiscardHandler)
	o.History = admin.NewHistory(func(func(adminapi.LimitCounts)) (none adminapi.Counts) { return none })
	s = admin.NewServer(o)
	change(s)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() {
		_ = s.Close()
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return l.Addr().String(), s
}

// openEvents opens a stream, and returns its events.
func openEvents(t *testing.T, addr string) io.ReadCloser {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	res, err := (&http.Client{Transport: transport}).Get("http://" + addr + "/events")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = res.Body.Close() })
	if kind := res.Header.Get("Content-Type"); res.StatusCode != http.StatusOK || kind != "text/event-stream" {
		t.Fatalf("%s, %s", res.Status, kind)
	}
	return res.Body
}

// A stream outlives the timeouts of other requests, and has an event when the state changes, and none when it does not.
func TestEventsOfState(t *testing.T) {
	t.Parallel()
	var fails atomic.Bool
	addr, _ := eventServer(t, admin.Options{Checks: []admin.Check{{Name: "store", Err: func(context.Context) error {
		if fails.Load() {
			return errors.New("connection refused")
		}
		return nil
	}}}}, func(s *http.Server) { s.ReadTimeout, s.WriteTimeout = 50*time.Millisecond, 100*time.Millisecond })
	lines := bufio.NewScanner(openEvents(t, addr))
	next := func() string {
		for lines.Scan() {
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				return data
			}
		}
		t.Fatalf("the stream has ended: %v", lines.Err())
		return ""
	}
	if first := next(); !strings.Contains(first, `{"ready":true,"checks":[{"name":"store"}]`) {
		t.Errorf("the first event is %s", first)
	}
	time.Sleep(1500 * time.Millisecond) // beyond the timeouts; the state is compared once, and is the same
	fails.Store(true)
	if second := next(); !strings.Contains(second, `{"ready":false,"checks":[{"name":"store","error":"connection refused"}]`) {
		t.Errorf("after the store is gone the event is %s", second)
	}
}

// Streams end when the server stops, and do not hold it up.
func TestEventsEndWithTheServer(t *testing.T) {
	t.Parallel()
	addr, s := eventServer(t, admin.Options{}, func(*http.Server) {})
	events := openEvents(t, addr)
	if _, err := bufio.NewReader(events).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		t.Fatalf("the stop waits for the stream: %v", err)
	}
	if _, err := io.Copy(io.Discard, events); err != nil {
		t.Errorf("the stream ends with %v", err)
	}
}

// There is a bound on streams; one that has ended makes room.
func TestStreamsAreBounded(t *testing.T) {
	t.Parallel()
	addr, _ := eventServer(t, admin.Options{}, func(*http.Server) {})
	first := openEvents(t, addr)
	for range 15 {
		openEvents(t, addr)
	}
	res, err := http.Get("http://" + addr + "/events")
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if want := "16 streams of events are open"; res.StatusCode != http.StatusServiceUnavailable ||
		res.Header.Get("Retry-After") == "" || !strings.Contains(string(body), want) {
		t.Errorf("one more: %s %s, want 503 and %q", res.Status, body, want)
	}
	_ = first.Close()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		res, err := http.Get("http://" + addr + "/events")
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode == http.StatusOK {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("a stream that has ended still counts")
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

// A reader that does not read is cut off.
func TestSlowListener(t *testing.T) {
	t.Parallel()
	closed := make(chan struct{}, 1)
	errs := make([]string, 100)
	for i := range errs {
		errs[i] = strings.Repeat("x", 200_000) // more than the system buffers
	}
	addr, _ := eventServer(t, admin.Options{Rules: &fakeRules{status: adminapi.RulesStatus{Errors: errs}}},
		func(s *http.Server) {
			s.ConnState = func(_ net.Conn, state http.ConnState) {
				if state == http.StateClosed {
					closed <- struct{}{}
				}
			}
		})
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // the server has closed it
	began := time.Now()
	if _, err := conn.Write([]byte("GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	select {
	case <-closed:
		if took := time.Since(began); took < 4*time.Second {
			t.Errorf("closed after %s already", took)
		}
	case <-time.After(20 * time.Second):
		t.Error("a reader that does not read keeps its stream")
	}
}

// HEAD opens no stream.
func TestHeadOfEvents(t *testing.T) {
	addr, _ := eventServer(t, admin.Options{}, func(*http.Server) {})
	res, err := http.Head("http://" + addr + "/api/v1/events")
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Error(res.Status)
	}
	http.DefaultClient.CloseIdleConnections()
}
