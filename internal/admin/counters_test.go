package admin_test

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/admin"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
)

// live is a handler over one rule and the memory store, and its log.
func live(t *testing.T) (http.Handler, *bytes.Buffer) {
	t.Helper()
	set, err := rulefile.Compile([]rulefile.File{{Name: "rules.yaml", Data: []byte(
		"domain: shop\ndescriptors: [{key: client, rate_limit: {requests_per_unit: 5, unit: hour}}, {key: free}]\n")}})
	if err != nil {
		t.Fatal(err)
	}
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	log := &bytes.Buffer{}
	logger := slog.New(slog.NewTextHandler(log, nil))
	return onSocket(admin.NewServer(admin.Options{
		Counters: &admin.Counters{
			Rules: func() *descriptors.Set { return set }, Store: store,
			Forget: func(_ context.Context, key string) (bool, error) { return store.Reset(key), nil },
		},
		Metrics: http.NotFoundHandler(), Log: logger,
	})), log
}

// What is asked wrongly is answered with a status of its own and what to write instead.
func TestLiveEndpoints(t *testing.T) {
	h, log := live(t)
	for _, tc := range []struct {
		method, target, body string
		status               int
		want                 string // in the answer
	}{
		{"GET", "/keys/get?domain=shop&descriptor=client%3Dann", "", 200, `"remaining": 5`},
		{"GET", "/keys/get?domain=shop&descriptor=free=", "", 200, `"limits": []`},
		{
			"GET", "/keys/get?domain=shop", "", 400,
			`"error": "descriptor: a descriptor is missing; write key=value,key=value"`,
		},
		{"GET", "/keys/get?descriptor=a=", "", 404, `domain: there is no domain \"\" (not found); the domains are: \"shop\"`},
		{"GET", "/keys/get?domain=shop&descriptor=nothing=", "", 404, `descriptor: no rule of domain \"shop\" matches it`},
		{"POST", "/keys/reset", `{"domain": "shop", "descriptor": "client=ann"}`, 200, `"existed": false`},
		{"POST", "/keys/reset", `{"domain": "shop"}`, 400, "descriptor: "},
		{"POST", "/keys/reset", `{"domain": "shop", "descriptor": "free="}`, 400, "has no limit and therefore no counter"},
		{
			"POST", "/keys/reset", `{"descriptors": "x"}`, 400,
			`the body is not the JSON object of this path: json: unknown field \"descriptors\"`,
		},
		{"POST", "/keys/reset", `{"domain": "` + strings.Repeat("x", 20<<10) + `"}`, 400, "request body too large"},
		{
			"POST", "/keys/reset", `{"domain": "shop", "descriptor": "client=ann"} {}`, 400,
			"text follows it; send only the object",
		},
		{
			"POST", "/keys/reset", `{"domain": "shop", "descriptor": "client=ann"} x`, 400,
			"text follows it; send only the object",
		},
		{
			"GET", "/keys/reset", "", 405,
			`"error": "GET /keys/reset is not supported; this path supports POST"`,
		},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), tc.method, tc.target, strings.NewReader(tc.body)))
		if w.Code != tc.status || !strings.Contains(w.Body.String(), tc.want) {
			t.Errorf("%s %s %.80s answers %d %s, want %d with %s", tc.method, tc.target, tc.body, w.Code, w.Body, tc.status,
				tc.want)
		}
	}
	for text, want := range map[string]int{
		"action=reset result=ok client=socket addr=192.0.2.1:1234 domain=shop rule=client counters=1 key_hashes=": 1,
		"action=reset result=failed": 2, "refused as invalid": 2, "client=ann": 0,
	} {
		if n := strings.Count(log.String(), text); n != want {
			t.Errorf("%d lines of the log have %q, want %d:\n%s", n, text, want, log)
		}
	}
}
