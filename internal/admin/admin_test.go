package admin_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/internal/admin"
	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/descriptors"
)

// fakeRules has the given status after a Reload that returns err.
type fakeRules struct {
	status  adminapi.RulesStatus
	live    *descriptors.Set
	err     error
	reloads int
}

func (f *fakeRules) Status() adminapi.RulesStatus { return f.status }
func (f *fakeRules) Set() *descriptors.Set        { return f.live }
func (f *fakeRules) Reload(context.Context) error {
	f.reloads++
	return f.err
}

func handler(rules *fakeRules, checks ...admin.Check) http.Handler {
	return onSocket(admin.NewServer(admin.Options{
		Checks:  checks,
		Rules:   rules,
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "weir_up 1\n") }),
		Build:   adminapi.Build{Version: "v1.2.3"},
		Log:     slog.New(slog.DiscardHandler),

		Counters: &admin.Counters{Rules: func() *descriptors.Set { return nil }},

		Explain: explain,
	}))
}

// onSocket is the server as it answers through the admin socket.
func onSocket(server *http.Server) http.Handler { return admin.NewSocketServer(server.Handler).Handler }

func ask(t *testing.T, h http.Handler, method, target string) (status int, body string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, target, nil))
	return w.Code, w.Body.String()
}

func check(name string, err error) admin.Check {
	return admin.Check{Name: name, Err: func(context.Context) error { return err }}
}

// The index names every endpoint, and every endpoint that it names is there. What is to change something refuses to
// without being told what.
func TestIndex(t *testing.T) {
	h := handler(&fakeRules{})
	_, index := ask(t, h, "GET", "/")
	named := 0
	for line := range strings.Lines(index) {
		f := strings.Fields(line)
		if len(f) < 2 || !strings.HasPrefix(f[1], "/") {
			continue
		}
		named++
		status, body := ask(t, h, f[0], f[1])
		refused := (status == http.StatusBadRequest || status == http.StatusNotFound) && strings.Contains(body, `"error"`)
		if status != http.StatusOK && !refused {
			t.Errorf("%s %s answers %d %s, want 170 or what is missing", f[0], f[1], status, body)
		}
	}
	if named != 13 {
		t.Errorf("the index names %d endpoints, want 13:\n%s", named, index)
	}
}

// A check that hangs is cut off, so that a probe gets its answer.
// Profiles are there on request only, and without the command line, where a password may be.
func TestProfilesOnRequest(t *testing.T) {
	plain := handler(&fakeRules{})
	asked := onSocket(admin.NewServer(admin.Options{Config: admin.Config{Pprof: true}, Metrics: http.NotFoundHandler()}))
	for target, want := range map[string]int{
		"/debug/pprof/": 200, "/debug/pprof/heap": 200, "/debug/pprof/goroutine": 200, "/debug/pprof/symbol": 200,
		"/debug/pprof/cmdline": 404,
	} {
		if status, _ := ask(t, plain, http.MethodGet, target); status != http.StatusNotFound {
			t.Errorf("GET %s without Pprof: status %d, want 404", target, status)
		}
		if status, _ := ask(t, asked, http.MethodGet, target); status != want {
			t.Errorf("GET %s with Pprof: status %d, want %d", target, status, want)
		}
	}
}

// Only a process that decides requests by failure policies is degraded.
func TestDegraded(t *testing.T) {
	check := func(name string, fails, remote bool) admin.Check {
		return admin.Check{Name: name, Remote: remote, Err: func(context.Context) error {
			if fails {
				return errors.New("down")
			}
			return nil
		}}
	}
	for name, tt := range map[string]struct {
		rules, store bool // fail
		want         bool
	}{"all is well": {}, "the store fails": {store: true, want: true}, "both fail": {rules: true, store: true}} {
		h := admin.NewServer(admin.Options{
			Log: slog.New(slog.DiscardHandler), Metrics: http.NotFoundHandler(), Rules: &fakeRules{},
			Checks:   []admin.Check{check("rules", tt.rules, false), check("store", tt.store, true)},
			Degraded: func(context.Context) string { return "2 deny" },
		}).Handler
		const want = `"problem": "2 deny",
  "degraded": "2 deny"`
		if _, body := ask(t, h, "GET", "/status"); strings.Contains(body, want) != tt.want {
			t.Errorf("%s: degraded is to be shown: %t; the answer is\n%s", name, tt.want, body)
		}
	}
}

// The result of a check is shown for a second, and with it what limits did then: no process that decides is "not ready".
func TestDegradedUntilTheNextCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := errors.New("down")
		h := admin.NewServer(admin.Options{
			Log: slog.New(slog.DiscardHandler), Metrics: http.NotFoundHandler(), Rules: &fakeRules{},
			Checks: []admin.Check{{Name: "store", Remote: true, Err: func(context.Context) error { return down }}},
			Degraded: func(context.Context) string {
				if down == nil {
					return ""
				}
				return "2 deny"
			},
		}).Handler
		for _, want := range []string{`"degraded": "2 deny"`, `"degraded": "2 deny"`, `"ready": true`} {
			if _, body := ask(t, h, "GET", "/status"); !strings.Contains(body, want) {
				t.Errorf("want %s in\n%s", want, body)
			}
			down = nil
			time.Sleep(600 * time.Millisecond)
		}
	})
}

func TestReadyHasADeadline(t *testing.T) {
	hangs := admin.Check{Name: "store", Err: func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}}
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		status, body := ask(t, handler(&fakeRules{}, hangs), "GET", "/readyz")
		if want := "not ready\nstore: context deadline exceeded\n"; status != 503 || body != want {
			t.Errorf("got %d %q, want 503 %q", status, body, want)
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("the answer took %v, want at most 1s", took)
		}
	})
}

func TestServerHasTimeouts(t *testing.T) {
	s := admin.NewServer(admin.Options{Log: slog.New(slog.DiscardHandler), Metrics: http.NotFoundHandler()})
	if s.ReadHeaderTimeout == 0 || s.ReadTimeout == 0 || s.WriteTimeout == 0 || s.IdleTimeout == 0 ||
		s.MaxHeaderBytes == 0 {
		t.Errorf("an HTTP bound is left open: %+v", s)
	}
}
