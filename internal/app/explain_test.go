package app

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/offline/explain"
)

// GET /explain shows the live counter and charges nothing, however often it is asked.
func TestExplainLooks(t *testing.T) {
	p := start(t, options(t, rulesOf("2")))
	look := func() explain.Report {
		status, body := p.http("GET", "/explain?descriptor=client=eve")
		var r explain.Report
		if err := json.Unmarshal([]byte(body), &r); err != nil || status != http.StatusOK {
			t.Fatalf("%d %s: %v", status, body, err)
		}
		return r
	}
	for _, want := range []struct {
		asks      string
		code      string
		remaining int64
	}{{"", "OK", 2}, {"OK", "OK", 1}, {"OK", "OVER_LIMIT", 0}, {"OVER_LIMIT", "OVER_LIMIT", 0}} {
		if want.asks != "" && p.ask("eve") != want.asks {
			t.Fatalf("the request is not %s", want.asks)
		}
		for range 3 {
			if r := look(); !r.Live || r.Answer.Code != want.code || r.Descriptors[0].Limits[0].Remaining != want.remaining {
				t.Fatalf("a look says %+v, want %s with %d remaining", r, want.code, want.remaining)
			}
		}
	}
	if n := look().Answer.RetryAfter; !n.Denied || n.Seconds <= 0 || n.Seconds > 365*24*3600 {
		t.Errorf("Retry-After is %v, want a time within the year", n)
	}
	_, metrics := p.http("GET", "/metrics")
	if !strings.Contains(metrics, `weir_decisions_total{domain="shop",limit="",outcome="denied",rule="client"} 1`) {
		t.Errorf("looks were counted:\n%s", metrics)
	}
}

// Without rules, and for a question that is none, it says why.
func TestExplainRefuses(t *testing.T) {
	o := options(t, "")
	o.AllowEmptyRules = true
	p := start(t, o)
	status, body := p.http("GET", "/explain?domain=shop&descriptor=client=eve")
	if status != http.StatusBadRequest || !strings.Contains(body,
		"no rules are loaded yet; GET /rules says what is wrong") {
		t.Errorf("%d %s", status, body)
	}
	if status, body = p.http("GET", "/explain"); status != http.StatusBadRequest ||
		!strings.Contains(body, "descriptor: is missing; write") {
		t.Errorf("%d %s", status, body)
	}
}
