package app

import (
	"net/http"
	"strings"
	"testing"
)

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
