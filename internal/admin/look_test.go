package admin_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/internal/admin"
	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
)

const shop = `
domain: shop
descriptors:
  - {key: user, description: who it is, owner: team-edge, rate_limit: {name: each, algorithm: funnel, requests_per_unit: 10, unit: second, burst: 20}}
  - key: path
    shadow_mode: true
    rate_limits:
      - {name: burst, requests_per_unit: 5, unit: second}
      - {name: daily, requests_per_unit: 100, unit: day}
  - {key: vip, rate_limit: {unlimited: true}}
`

// looked is a handler with these rules, whose limit i was asked i+1 times, and denied i of them.
func looked(t *testing.T, rules string, o admin.Options) http.Handler {
	t.Helper()
	set, err := rulefile.Compile([]rulefile.File{{Name: "shop.yaml", Data: []byte(rules)}})
	if err != nil {
		t.Fatal(err)
	}
	if o.Rules == nil {
		o.Rules = &fakeRules{}
	}
	o.Rules.(*fakeRules).live = set //nolint:errcheck // no test gives others
	o.Reservation, o.Decisions = reservation, decisions
	o.Metrics, o.Log = http.NotFoundHandler(), slog.New(slog.DiscardHandler)
	return onSocket(admin.NewServer(o))
}

// No answer has a character that cannot be seen, and no error more of a client's text than people read: JSON escapes
// it, and stands for the same.
func TestAnswersArePlain(t *testing.T) {
	const evil = "\x1b[31m\u202e\u009b2J\U000e0041"
	name := strconv.QuoteToASCII(evil)
	rules := fmt.Sprintf("{domain: %[1]s, descriptors: [{key: %[1]s, description: %[1]s, rate_limit: "+
		"{name: %[1]s, requests_per_unit: 1, unit: hour}}]}", name)
	h := looked(t, rules, admin.Options{
		Rules:  &fakeRules{status: adminapi.RulesStatus{Errors: []string{evil}}},
		Config: admin.Config{HTTPJSON: true},
		DecideJSON: func(_ context.Context, body io.Reader) ([]byte, bool, error) {
			text, err := io.ReadAll(body)
			if len(text) > 100 {
				err = fmt.Errorf("invalid value %s", text)
			}
			return text, false, err
		},
	})
	query := url.Values{"domain": {evil}, "rule": {evil}}.Encode()
	long := strings.Repeat("1", 200<<10)
	for _, c := range []struct {
		method, target, body string
		shows                string
	}{
		{"GET", "/rules", "", evil},
		{"GET", "/rules?" + query, "", evil},
		{"GET", "/rules?" + query + "2", "", "has no rule"},
		{"GET", "/rules?domain=" + long[:20<<10], "", "there is no"},
		{"GET", "/status", "", evil},
		{"POST", "/json", "\"\u009b2J\u202e\"", "\u009b2J\u202e"},
		{"POST", "/json", `{"` + long + `":1}`, "invalid value"},
		{"POST", "/keys/reset", `{"` + long[:3<<10] + `":1}`, "unknown field"},
	} {
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), c.method, c.target, strings.NewReader(c.body))
		h.ServeHTTP(w, r)
		text := w.Body.String()
		if strings.ContainsFunc(text, func(c rune) bool { return c != '\n' && !unicode.IsPrint(c) }) || len(text) > 10<<10 {
			t.Errorf("%s %.80s answers %d, %d bytes: %.500q", c.method, c.target, w.Code, len(text), text)
		}
		var v any
		if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil || !strings.Contains(fmt.Sprint(v), c.shows) {
			t.Errorf("%s %.80s answers %d %v: %.500s", c.method, c.target, w.Code, err, text)
		}
	}
}

// GET /rlconfig is in plain characters, too, and leaves whole those that take several bytes.
func TestConfigIsPlain(t *testing.T) {
	var rules, want strings.Builder
	rules.WriteString("domain: d\ndescriptors:\n")
	for i := range 5 {
		key := strings.Repeat("x", i+1) + strings.Repeat("日", 1000)
		fmt.Fprintf(&rules, "- {key: %s, value: \"\\u202e\", rate_limit: {requests_per_unit: 1, unit: hour}}\n", key)
		fmt.Fprintf(&want, "d.%s_\\u202e: unit=HOUR requests_per_unit=1, shadow_mode: false, quota_mode: false\n", key)
	}
	set, err := rulefile.Compile([]rulefile.File{{Name: "shop.yaml", Data: []byte(rules.String())}})
	if err != nil {
		t.Fatal(err)
	}
	_, body := ask(t, admin.NewDebugServer(func() *descriptors.Set { return set }, nil).Handler, "GET", "/rlconfig")
	if diff := cmp.Diff(want.String(), body); diff != "" {
		t.Error(diff)
	}
}

func TestStatus(t *testing.T) {
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	rules := &fakeRules{status: adminapi.RulesStatus{
		Hash: "abc", LoadedAt: at, Files: []string{"shop.yaml"},
		ErrorsAt: at,
	}}
	for i := range 150 {
		rules.status.Errors = append(rules.status.Errors, fmt.Sprintf("shop.yaml:%d:1: wrong", i))
	}
	h := looked(t, shop, admin.Options{
		Rules: rules, Checks: []admin.Check{check("rules", nil), check("store", errors.New("connection refused"))},
		Build: adminapi.Build{Version: "v1"}, Store: "memory", StartedAt: at,
	})
	status, body := ask(t, h, "GET", "/status")
	var got struct {
		Ready  bool
		Checks []struct{ Name, Error string }
		Store  string
		Rules  struct {
			Files, Domains, Rules, Limits int
			ErrorCount                    int `json:"error_count"`
			Errors                        []string
		}
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil || status != http.StatusOK {
		t.Fatalf("%d %v: %s", status, err, body)
	}
	if r := got.Rules; r.Files != 1 || r.Domains != 1 || r.Rules != 3 || r.Limits != 3 || r.ErrorCount != 150 ||
		len(r.Errors) != 100 {
		t.Errorf("rules: %+v", r)
	}
	if got.Ready || len(got.Checks) != 2 || got.Checks[1].Error != "connection refused" || got.Store != "memory" {
		t.Errorf("%+v", got)
	}
}

// A browser gets the page, with a policy that admits its own style and script and nothing else.
func TestPageForBrowsers(t *testing.T) {
	h := looked(t, shop, admin.Options{})
	r := httptest.NewRequestWithContext(t.Context(), "GET", "/", nil)
	r.Header.Set("Accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	page, policy := w.Body.String(), w.Header().Get("Content-Security-Policy")
	if !strings.HasPrefix(page, "<!doctype html>") || w.Header().Get("Content-Type") != "text/html; charset=utf-8" ||
		w.Header().Get("Vary") != "Accept" {
		t.Errorf("headers %v, page %.60s", w.Header(), page)
	}
	for _, tag := range []string{"style", "script"} {
		found := regexp.MustCompile(`(?s)<`+tag+`>(.*?)</`+tag+`>`).FindAllStringSubmatch(page, -1)
		if len(found) != 1 {
			t.Fatalf("%d times %s, want once", len(found), tag)
		}
		sum := sha256.Sum256([]byte(found[0][1]))
		if want := tag + "-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"; !strings.Contains(policy, want) {
			t.Errorf("the policy does not admit the %s: %s", tag, policy)
		}
	}
	for _, never := range []string{"unsafe", "*", "http:", "https:"} {
		if strings.Contains(policy, never) {
			t.Errorf("the policy has %s: %s", never, policy)
		}
	}
	for _, never := range []string{
		"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "{{", "http://",
		"https://", "onclick=", "style=",
	} {
		if strings.Contains(page, never) {
			t.Errorf("the page has %s", never)
		}
	}
}
