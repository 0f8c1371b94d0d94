package admin_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/internal/admin"
	"github.com/weir-ratelimit/weir/internal/admin/topkeys"
	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/descriptors"
)

// request has headers, as name, value.
func request(t *testing.T, method, target string, header ...string) *http.Request {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, target, strings.NewReader("{}"))
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return r
}

// certified is the request with a verified certificate.
func certified(r *http.Request) *http.Request {
	r.TLS = &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{{}}}}
	return r
}

// certs takes client certificates.
var certs = admin.Config{HTTPTLSClientCA: "ca.pem"}

// Who changes something proves who they are by the admin socket, the token or a certificate. An address proves nothing.
func TestWhoMayChange(t *testing.T) {
	token := func() (string, error) { return "secret", nil }
	fromHere := func(r *http.Request) *http.Request {
		r.RemoteAddr, r.Host = "127.0.0.1:5", "localhost:8080"
		return r
	}
	for name, tc := range map[string]struct {
		o        admin.Options
		onSocket bool
		r        *http.Request
		want     int
		says     string
	}{
		"by the socket": {onSocket: true, r: request(t, "POST", "/reload"), want: 200},
		"by the socket, beside a token": {
			o: admin.Options{Token: token, Config: certs}, onSocket: true, r: request(t, "POST", "/reload"), want: 200,
		},
		"a profile by the socket": {
			o: admin.Options{Config: admin.Config{Pprof: true}}, onSocket: true, r: request(t, "GET", "/debug/pprof/"), want: 200,
		},
		"from here":             {r: fromHere(request(t, "POST", "/reload")), want: 403, says: "--http-token-file"},
		"from here, to the API": {r: fromHere(request(t, "POST", "/api/v1/reload")), want: 403, says: "without --server"},
		"from away":             {r: request(t, "POST", "/reload"), want: 403, says: "--http-tls-client-ca"},
		"a read":                {r: request(t, "GET", "/status"), want: 200},
		"a probe":               {r: request(t, "GET", "/healthz"), want: 200},
		"a profile": {
			o: admin.Options{Config: admin.Config{Pprof: true}}, r: fromHere(request(t, "GET", "/debug/pprof/")), want: 403, says: "requires the admin socket",
		},
		"without the token": {
			o: admin.Options{Token: token}, r: fromHere(request(t, "POST", "/reload")), want: 401, says: "this request needs a token",
		},
		"with another token": {
			o: admin.Options{Token: token}, r: request(t, "POST", "/reload", "Authorization", "Bearer s"), want: 401,
			says: "this request needs a token",
		},
		"with the token": {
			o: admin.Options{Token: token}, r: request(t, "POST", "/reload", "Authorization", "Bearer secret"), want: 200,
		},
		"no certificate": {
			o: admin.Options{Config: certs}, r: fromHere(request(t, "POST", "/reload")), want: 403, says: "certificate",
		},
		"a certificate": {
			o: admin.Options{Config: certs}, r: certified(request(t, "POST", "/reload")), want: 200,
		},
		"a certificate for TLS alone": {
			r: certified(request(t, "POST", "/reload")), want: 403, says: "requires the admin socket",
		},
	} {
		t.Run(name, func(t *testing.T) {
			rules := &fakeRules{}
			tc.o.Rules, tc.o.Log, tc.o.Metrics = rules, slog.New(slog.DiscardHandler), http.NotFoundHandler()
			server := admin.NewServer(tc.o)
			h := server.Handler
			if tc.onSocket {
				h = onSocket(server)
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, tc.r)
			var said struct{ Error string }
			if w.Code != tc.want {
				t.Errorf("status %d, want %d: %s", w.Code, tc.want, w.Body)
			}
			if tc.want >= 400 && (json.Unmarshal(w.Body.Bytes(), &said) != nil || !strings.Contains(said.Error, tc.says)) {
				t.Errorf("the answer is %s, want an error with %q", w.Body, tc.says)
			}
			if (rules.reloads > 0) != (tc.want == 200 && tc.r.Method == "POST") {
				t.Errorf("%d reloads", rules.reloads)
			}
		})
	}
}

// hashedTop is GET /top of no keys.
func hashedTop(q topkeys.Query) (adminapi.TopKeys, error) {
	return adminapi.TopKeys{Hashed: q.HashValues}, nil
}

// Values of keys are for those who may change something.
func TestValuesAreNotForEverybody(t *testing.T) {
	token := func() (string, error) { return "secret", nil }
	for name, tc := range map[string]struct {
		o        admin.Options
		onSocket bool
		hasCert  bool
		header   []string
		hidden   bool
	}{
		"without anything":   {hidden: true},
		"by the socket":      {onSocket: true},
		"without the token":  {o: admin.Options{Token: token}, hidden: true},
		"with another token": {o: admin.Options{Token: token}, header: []string{"Authorization", "Bearer s"}, hidden: true},
		"with the token":     {o: admin.Options{Token: token}, header: []string{"Authorization", "Bearer secret"}},
		"with a certificate": {o: admin.Options{Token: token, Config: certs}, hasCert: true},
		"a token of nobody":  {header: []string{"Authorization", "Bearer secret"}, hidden: true},
	} {
		t.Run(name, func(t *testing.T) {
			tc.o.Top, tc.o.Log, tc.o.Metrics = hashedTop, slog.New(slog.DiscardHandler), http.NotFoundHandler()
			server := admin.NewServer(tc.o)
			h := server.Handler
			if tc.onSocket {
				h = onSocket(server)
			}
			for _, path := range []string{"/top", "/api/v1/top"} {
				w, r := httptest.NewRecorder(), request(t, "GET", path, tc.header...)
				if tc.hasCert {
					r = certified(r)
				}
				h.ServeHTTP(w, r)
				hashed := strings.Contains(w.Body.String(), `"values_hashed": true`)
				if w.Code != 200 || hashed != tc.hidden {
					t.Errorf("%s answers %d %s, hidden: want %t", path, w.Code, w.Body, tc.hidden)
				}
			}
		})
	}
}

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
			h.ServeHTTP(w, request(t, "POST", "/reload"))
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

// The token may change while the process runs. What is in the file is checked.
func TestTokenFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	h := admin.NewServer(admin.Options{
		Config: admin.Config{HTTPTokenFile: file}, Rules: &fakeRules{}, Log: slog.New(slog.DiscardHandler),
		Metrics: http.NotFoundHandler(),
	}).Handler
	for _, step := range []struct {
		content, sent string
		want          int
	}{
		{"s3cret-s3cret-s3cret\n", "s3cret-s3cret-s3cret", 200},
		{"another-token-of-16", "s3cret-s3cret-s3cret", 401},
		{"another-token-of-16", "another-token-of-16", 200},
		{"short", "short", 503},
	} {
		if err := os.WriteFile(file, []byte(step.content), 0o600); err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, request(t, "POST", "/reload", "Authorization", "Bearer "+step.sent))
		if w.Code != step.want {
			t.Errorf("%q sent, %q in the file: status %d, want %d", step.sent, step.content, w.Code, step.want)
		}
	}
}

// A token that cannot be read is a line in ten seconds, however many ask.
func TestUnreadableTokenIsLoggedOnce(t *testing.T) {
	var log strings.Builder
	h := admin.NewServer(admin.Options{
		Log: slog.New(slog.NewTextHandler(&log, nil)), Metrics: http.NotFoundHandler(),
		Token: func() (string, error) { return "", errors.New("no such file") },
	}).Handler
	for range 20 {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, request(t, "POST", "/reload"))
		if w.Code != http.StatusServiceUnavailable {
			t.Fatalf("status %d, want 503", w.Code)
		}
	}
	if n := strings.Count(log.String(), "cannot be read"); n != 1 {
		t.Errorf("%d lines of the log, want 1:\n%s", n, &log)
	}
}
