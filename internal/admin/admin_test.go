package admin_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

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

		Explain: fakeExplainer{}.Explain,
	}))
}

// fakeExplainer answers with the query.
type fakeExplainer struct{}

func (fakeExplainer) Explain(_ context.Context, query url.Values) (any, error) {
	if query.Get("domain") == "bad" {
		return nil, errors.New("no <such> domain")
	}
	return query, nil
}

// GET /explain is open to all, whatever the token, answers in JSON, and says what is wrong with the question.
func TestExplain(t *testing.T) {
	h := admin.NewServer(admin.Options{
		Metrics: http.NotFoundHandler(), Explain: fakeExplainer{}.Explain, Token: func() (string, error) { return "secret", nil },
	}).Handler
	for target, want := range map[string]string{
		"/explain?domain=shop&descriptor=a=1,b=2&descriptor=c=": "200 {\n  \"descriptor\": [\n    \"a=1,b=2\",\n    \"c=\"\n  ],\n  \"domain\": [\n    \"shop\"\n  ]\n}\n",
		"/explain?domain=bad": "400 {\n  \"error\": \"no \\u003csuch\\u003e domain\"\n}\n",
	} {
		if status, body := ask(t, h, "GET", target); fmt.Sprintf("%d %s", status, body) != want {
			t.Errorf("%s answers %d %s, want %s", target, status, body, want)
		}
	}
}

// onSocket is the server as it answers through the admin socket.
func onSocket(server *http.Server) http.Handler { return admin.NewSocketServer(server.Handler).Handler }

func ask(t *testing.T, h http.Handler, method, target string, header ...string) (status int, body string) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, target, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func check(name string, err error) admin.Check {
	return admin.Check{Name: name, Err: func(context.Context) error { return err }}
}

func TestEndpoints(t *testing.T) {
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	good := adminapi.RulesStatus{Hash: "abc", LoadedAt: at, Files: []string{"rules/shop.yaml"}}
	refused := good
	refused.Errors, refused.ErrorsAt = []string{"rules/shop.yaml:3:5: key is missing"}, at.Add(time.Minute)
	live := &descriptors.Set{}

	for name, c := range map[string]struct {
		rules          fakeRules
		checks         []admin.Check
		method, target string
		status         int
		body           string
	}{
		"alive": {method: "GET", target: "/healthz", status: 200, body: "ok\n"},
		"ready": {
			checks: []admin.Check{check("rules", nil), check("store", nil)},
			method: "GET", target: "/readyz", status: 200, body: "ready\nrules: ok\nstore: ok\n",
		},
		"not ready names what is not": {
			checks: []admin.Check{check("rules", nil), check("store", errors.New("connection refused"))},
			method: "GET", target: "/readyz", status: 503, body: "not ready\nrules: ok\nstore: connection refused\n",
		},
		"rules": {
			rules: fakeRules{status: refused, live: live}, method: "GET", target: "/rules", status: 200,
			body: `{"status": {"hash": "abc", "loaded_at": "2026-11-21T12:00:00Z", "files": 1,
				"errors": ["rules/shop.yaml:3:5: key is missing"], "errors_at": "2026-11-21T12:01:00Z", "error_count": 1,
				"domains": 0, "rules": 0, "limits": 0}, "found": 0, "offset": 0, "rules": []}`,
		},
		"no rules yet": {
			method: "GET", target: "/rules", status: 200, body: `{"status": {"hash": "", "files": 0,
				"error_count": 0, "domains": 0, "rules": 0, "limits": 0}, "found": 0, "offset": 0, "rules": []}`,
		},
		"reload": {
			rules: fakeRules{status: good}, method: "POST", target: "/reload", status: 200,
			body: `{"result": "ok", "hash": "abc", "loaded_at": "2026-11-21T12:00:00Z", "files": ["rules/shop.yaml"]}`,
		},
		"refused reload": {
			rules: fakeRules{status: refused, err: errors.New("bad")}, method: "POST", target: "/reload", status: 422,
			body: `{"result": "refused", "hash": "abc", "loaded_at": "2026-11-21T12:00:00Z", "files": ["rules/shop.yaml"],
				"errors": ["rules/shop.yaml:3:5: key is missing"], "errors_at": "2026-11-21T12:01:00Z"}`,
		},
		"reload that could not read": {
			rules: fakeRules{status: good, err: errors.New("rules: permission denied")}, method: "POST", target: "/reload",
			status: 422,
			body: `{"result": "refused", "hash": "abc", "loaded_at": "2026-11-21T12:00:00Z", "files": ["rules/shop.yaml"],
				"errors": ["rules: permission denied"]}`,
		},
		"metrics": {method: "GET", target: "/metrics", status: 200, body: "weir_up 1\n"},
		"version": {
			method: "GET", target: "/version", status: 200,
			body: `{"version": "v1.2.3", "commit": "", "go": ""}`,
		},
		"unknown path": {
			method: "GET", target: "/nothing", status: 404,
			body: `{"error": "GET /nothing does not exist; GET / lists all paths"}`,
		},
		"wrong method": {
			method: "GET", target: "/keys/reset", status: 405,
			body: `{"error": "GET /keys/reset is not supported; this path supports POST"}`,
		},
		"rules for programs": {
			rules: fakeRules{status: good, live: live}, method: "GET", target: "/api/v1/rules", status: 200,
			body: `{"status": {"hash": "abc", "loaded_at": "2026-11-21T12:00:00Z", "files": 1, "error_count": 0,
				"domains": 0, "rules": 0, "limits": 0}, "found": 0, "offset": 0, "rules": []}`,
		},
		"unknown path for programs": {
			method: "GET", target: "/api/v1/nothing", status: 404,
			body: `{"error": "GET /api/v1/nothing does not exist; GET / lists all paths"}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			status, body := ask(t, handler(&c.rules, c.checks...), c.method, c.target)
			if status != c.status {
				t.Errorf("%s %s answers %d, want %d", c.method, c.target, status, c.status)
			}
			if strings.HasPrefix(c.body, "{") {
				body, c.body = compact(t, body), compact(t, c.body)
			}
			if diff := cmp.Diff(c.body, body); diff != "" {
				t.Errorf("body (-want +got):\n%s", diff)
			}
		})
	}
}

// compact is JSON text without its white space; key order stays.
func compact(t *testing.T, text string) string {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func TestReloadOnlyByPost(t *testing.T) {
	rules := &fakeRules{}
	if status, _ := ask(t, handler(rules), "GET", "/reload"); status != http.StatusMethodNotAllowed {
		t.Errorf("GET /reload answers %d, want 405", status)
	}
	if status, _ := ask(t, handler(rules), "POST", "/reload", "Sec-Fetch-Site",
		"cross-site"); status != http.StatusForbidden {
		t.Errorf("POST /reload by another site's page answers %d, want 403", status)
	}
	if rules.reloads != 0 {
		t.Errorf("rules were read %d times, want never", rules.reloads)
	}
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

func TestReadyLeavesChecksOut(t *testing.T) {
	down := admin.Check{Name: "store", Err: func(context.Context) error { return errors.New("down") }}
	h := handler(&fakeRules{}, admin.Check{Name: "rules", Err: func(context.Context) error { return nil }}, down)
	for path, want := range map[string]string{
		"/readyz":                             "503 not ready\nrules: ok\nstore: down\n",
		"/readyz?exclude=store":               "200 ready\nrules: ok\n",
		"/readyz?exclude=store&exclude=rules": "200 ready\n",
		"/readyz?exclude=stores":              "503 not ready\nrules: ok\nstore: down\n",
	} {
		if status, body := ask(t, h, "GET", path); fmt.Sprint(status, " ", body) != want {
			t.Errorf("%s: %d %q, want %q", path, status, body, want)
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
		if _, body := ask(t, h, "GET", "/status"); strings.Contains(body, `"degraded": "2 deny"`) != tt.want {
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
