package admin_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/internal/admin"
	"github.com/weir-ratelimit/weir/internal/descriptors"
)

// slowRules reload when they are let.
type slowRules struct {
	fakeRules

	began chan struct{}
	let   chan struct{}
}

func (s *slowRules) Reload(ctx context.Context) error {
	s.began <- struct{}{}
	<-s.let
	return s.fakeRules.Reload(ctx)
}

// However many ask for a reload, one is under way, and one that begins after they asked answers them all. Each has a
// line in the log.
func TestReloadIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rules := &slowRules{began: make(chan struct{}), let: make(chan struct{})}
		var log strings.Builder
		h := onSocket(admin.NewServer(admin.Options{
			Rules: rules, Log: slog.New(slog.NewTextHandler(&log, nil)),
			Metrics: http.NotFoundHandler(),
		}))
		var wg sync.WaitGroup
		post := func() {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "POST", "/reload", strings.NewReader("{}")))
			if w.Code != 200 {
				t.Errorf("%d %s", w.Code, w.Body)
			}
		}
		wg.Go(post)
		<-rules.began
		<-time.After(time.Nanosecond) // which virtual time does not take by itself
		for range 50 {
			wg.Go(post)
		}
		synctest.Wait()
		rules.let <- struct{}{}
		<-rules.began
		rules.let <- struct{}{}
		wg.Wait()
		if rules.reloads != 2 {
			t.Errorf("%d reloads for 51 requests, want 2", rules.reloads)
		}
		if n := strings.Count(log.String(), "msg=audit action=reload result=ok client=socket"); n != 51 {
			t.Errorf("%d lines of audit, want 51", n)
		}
	})
}

// A server is asked at most once a second, however many want to know.
func TestRemoteCheckIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		h := handler(&fakeRules{}, admin.Check{Name: "store", Remote: true, Err: func(ctx context.Context) error {
			asked.Add(1)
			<-time.After(100 * time.Millisecond)
			return ctx.Err()
		}})
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				for _, path := range []string{"/readyz", "/status", "/api/v1/status"} {
					if status, body := ask(t, h, "GET", path); status != 200 {
						t.Errorf("%s: %d %s", path, status, body)
					}
				}
			})
		}
		wg.Wait()
		if n := asked.Load(); n != 1 {
			t.Errorf("the server was asked %d times in 100ms, want once", n)
		}
		<-time.After(time.Second)
		if status, _ := ask(t, h, "GET", "/readyz"); status != 200 || asked.Load() != 2 {
			t.Errorf("a second later: status %d, asked %d times", status, asked.Load())
		}
	})
}

// What a client sends is cut in the log, and has no control characters there.
func TestAuditIsCut(t *testing.T) {
	var log strings.Builder
	h := onSocket(admin.NewServer(admin.Options{
		Counters: &admin.Counters{Rules: func() *descriptors.Set { return nil }},
		Log:      slog.New(slog.NewJSONHandler(&log, nil)), Metrics: http.NotFoundHandler(),
	}))
	body := `{"domain": "\u009b` + strings.Repeat("d", 5000) + `", "descriptor": "a=b"}`
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "POST", "/keys/reset", strings.NewReader(body)))
	if w.Code != http.StatusNotFound {
		t.Errorf("the response is %d %s", w.Code, w.Body)
	}
	if n := len(log.String()); n == 0 || n > 800 || strings.ContainsRune(log.String(), 0x9b) {
		t.Errorf("the log has %d bytes, or a control character: %.1000s", n, log.String())
	}
}
