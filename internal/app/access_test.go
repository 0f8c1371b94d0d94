package app

import (
	"net/http"
	"strings"
	"testing"
)

// Opened on purpose, it says so at the start.
func TestOpenIsWarnedOf(t *testing.T) {
	for open, want := range map[bool]int{false: 0, true: 1} {
		o := options(t, rulesOf("1"))
		o.HTTPOpen = open
		p := start(t, o)
		if n := p.logged("level=WARN msg=\"--http-open: everybody"); n != want {
			t.Errorf("open %t: %d warnings, want %d:\n%s", open, n, want, p.log)
		}
	}
}

// Through the whole server: a web page that has turned its name to this machine's address gets nothing, and the
// commands do.
func TestRebindingPageGetsNothing(t *testing.T) {
	p := start(t, options(t, rulesOf("1")))
	for _, tc := range []struct{ method, path, host, want string }{
		{"POST", "/reload", "evil.example", "403 Forbidden"},
		{"GET", "/top", "evil.example", "403 Forbidden"},
		{"POST", "/reload", "evil", "403 Forbidden"},
		{"POST", "/reload", "localhost", "200 OK"},
		{"POST", "/api/v1/reload", "", "200 OK"},
	} {
		req, err := http.NewRequestWithContext(t.Context(), tc.method, "http://"+p.app.HTTPAddr()+tc.path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = tc.host
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.Status != tc.want {
			t.Errorf("%s %s for %q: %s, want %s", tc.method, tc.path, tc.host, res.Status, tc.want)
		}
	}
	if n := p.logged("action=reload result=ok client=local"); n != 2 || strings.Contains(p.log.String(), "evil") {
		t.Errorf("%d reloads in the log, want 2:\n%s", n, p.log)
	}
}
