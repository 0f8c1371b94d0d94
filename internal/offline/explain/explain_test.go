package explain_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/offline/explain"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
)

const rules = `domain: shop
descriptors:
  - key: remote_address
    description: each client on its own
    owner: edge team
    rate_limit: {name: per-client, algorithm: funnel, requests_per_unit: 10, unit: second, burst: 3}
    response: {headers: {x-why: too many}, body: wait}
  - key: plan
    value: gold
    rate_limit: {name: gold, requests_per_unit: 100, unit: minute, replaces: [{name: per-client}]}
  - key: trial
    shadow_mode: true
    rate_limit: {requests_per_unit: 1, unit: minute}
  - key: quota
    quota_mode: true
    rate_limit: {requests_per_unit: 1, unit: minute}
  - key: queue
    rate_limit: {algorithm: leaky_queue, requests_per_unit: 10, unit: second, max_wait: 100ms}
  - key: tokens
    rate_limit: {requests_per_unit: 10000, unit: minute, reservation: {estimate: 1000}}
  - key: never
    rate_limit: {requests_per_unit: 0, unit: minute}
`

func compile(t *testing.T) *descriptors.Set {
	t.Helper()
	return casetest.Compile(t, rules)
}

func question(t *testing.T, hits uint32, ds ...string) explain.Question {
	t.Helper()
	q := explain.Question{Domain: "shop", Hits: hits}
	for _, d := range ds {
		es, err := descriptors.ParseEntries(d)
		if err != nil {
			t.Fatal(err)
		}
		q.Descriptors = append(q.Descriptors, es)
	}
	return q
}

// TestText compares the reports for people with testdata/text.txt.
func TestText(t *testing.T) {
	var got strings.Builder
	for _, c := range []struct {
		hits uint32
		ds   string
	}{
		{1, "remote_address=10.0.0.1"},
		{4, "remote_address=10.0.0.1"},
		{4, "remote_address=10.0.0.1 plan=gold"},
		{3, "trial=1"},
		{3, "quota=1"},
		{2, "queue=a"},
		{1, "tokens=a"},
		{1, "tokens=a,weir_hint=3000"},
		{1, "never=1 remoteaddress=10.0.0.1"},
		{5, "remote_address=a remote_address=a,x=y"},
		{2, "trial=1 quota=1"},
	} {
		r, err := explain.Offline(t.Context(), compile(t), question(t, c.hits, strings.Fields(c.ds)...))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&got, "==== hits %d: %s\n", c.hits, c.ds)
		if err := r.Text(&got); err != nil {
			t.Fatal(err)
		}
	}
	const path = "testdata/text.txt"
	if *casetest.Update {
		if err := os.WriteFile(path, []byte(got.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("-want +got (go test -update writes it)\n%s", diff)
	}
}

// The answer of live counters says when a denied request passes.
func TestTextOfLiveAnswer(t *testing.T) {
	after := 1.5
	r := explain.Report{Domain: "shop", Live: true, Answer: explain.Answer{
		Code: explain.OverLimit, DeniedBy: []string{"a (r:1)", "b (r:2)"}, Wait: 0.25,
		RetryAfter: &after,
	}}
	var got strings.Builder
	want := "response   OVER_LIMIT, with the current counters, denied by a (r:1) and b (r:2), passes after 1.5s, " +
		"delayed by up to 250ms\n"
	if err := r.Text(&got); err != nil || !strings.HasSuffix(got.String(), want) {
		t.Errorf("%v, %s", err, got.String())
	}
}

// A value that is too long to be matched reaches a rule that no file has.
func TestTextOfTooLongValue(t *testing.T) {
	rules := "domain: shop\ndescriptors: [{key: path, value: '*a*b*', rate_limit: {requests_per_unit: 1, unit: day}}]\n"
	long := "path=" + strings.Repeat("x", 3*descriptors.MaxPatternValue)
	r, err := explain.Offline(t.Context(), casetest.Compile(t, rules), question(t, 1, long))
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	if err := r.Text(&got); err != nil ||
		!strings.Contains(got.String(), "x: denied by the rule (value too long to match)\n") ||
		!strings.Contains(got.String(), "\n  rule     (value too long to match)\n") {
		t.Errorf("%v, %s", err, strings.ReplaceAll(got.String(), long, "path=x"))
	}
}

func TestMissing(t *testing.T) {
	for _, c := range []struct {
		hits           uint32
		ds, expect, or string
	}{
		{1, "remote_address=a", "ok", ""},
		{1, "remote_address=a", "over", "expected OVER_LIMIT, found OK"},
		{4, "remote_address=a", "over", ""},
		{4, "remote_address=a", "ok", "expected OK, found OVER_LIMIT"},
		{1, "remote_address=a", "per-client", ""},
		{1, "remote_address=a", "remote_address", ""},
		{1, "remote_address=a", "rules.yaml:3", ""},
		{1, "remote_address=a", "none", "expected no limit, found the rule remote_address (rules.yaml:3)"},
		{1, "remote_address=a plan=gold", "gold", ""},
		{1, "remote_address=a plan=gold", "per-client", "expected the rule per-client, found remote_address " +
			"(rules.yaml:3) and plan=gold (rules.yaml:8)"},
		{1, "plan=silver", "none", ""},
		{1, "plan=gold,x=y", "gold", `expected the rule gold, found none: no rule below plan=gold (rules.yaml:8) has the key "x"; ` +
			"there are no levels below, and a limit applies only where the last entry ends"},
	} {
		r, err := explain.Offline(t.Context(), compile(t), question(t, c.hits, strings.Fields(c.ds)...))
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Missing(c.expect); got != c.or {
			t.Errorf("%d hits of %s, --expect %s: %q, want %q", c.hits, c.ds, c.expect, got, c.or)
		}
	}
}

// What is asked over HTTP arrives as it was asked.
func TestQuery(t *testing.T) {
	q := question(t, 3, `a=1,b=x\,y=z`, "c=ü &%")
	got, err := explain.ParseQuery(explain.Query(q))
	if err != nil || cmp.Diff(q, got) != "" {
		t.Errorf("error %v, -want +got\n%s", err, cmp.Diff(q, got))
	}
	_, err = explain.ParseQuery(map[string][]string{"hits": {"0"}, "descriptor": {"="}})
	for _, want := range []string{
		`hits: must be a whole number from 1 to 4294967295, got "0"`,
		"descriptor 1: entry 1 has no key; write key=value,key=value",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %s in it", err, want)
		}
	}
	if _, err := explain.ParseQuery(
		map[string][]string{"domain": {"a"}},
	); err == nil ||
		!strings.HasPrefix(err.Error(), "descriptor: is missing; write ") {
		t.Errorf("error %v of a question without a descriptor", err)
	}
}
