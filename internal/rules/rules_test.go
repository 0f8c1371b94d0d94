package rules_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/rules"
	"github.com/weir-ratelimit/weir/internal/rules/xds"
	"github.com/weir-ratelimit/weir/internal/test/partnertest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// load loads rules for the first time.
func load(t *testing.T, o rules.Options) *rules.Rules {
	t.Helper()
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	r, err := rules.New(o)
	if err == nil {
		err = r.Load(t.Context(), func(*descriptors.Set) {})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// The status has the first hundred warnings of the active rules, and the number of all.
func TestStatusHasWarnings(t *testing.T) {
	var text strings.Builder
	text.WriteString("domain: shop\ndescriptors:\n")
	for i := range 150 {
		fmt.Fprintf(&text, "  - {key: k%d, value: ^a$, rate_limit: {requests_per_unit: 5, unit: second}}\n",
			i)
	}
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	r := load(t, rules.Options{Config: rules.Config{Rules: []string{file}}})
	s := r.Status()
	if s.WarningCount != 150 || len(s.Warnings) != 100 || !strings.HasPrefix(s.Warnings[0], file+":3:") {
		t.Errorf("%d warnings, %d shown: %.1q", s.WarningCount, len(s.Warnings), s.Warnings)
	}
}

// A stop ends a load of files or xDS rules before all rules are compiled.
func TestStopEndsALoad(t *testing.T) {
	t.Parallel()
	s := partnertest.StartControlPlane(t, partnertest.ControlPlaneOptions{})
	s.Set("1", partnertest.Domain("few", partnertest.Limit("sent", "", 1)))
	file := filepath.Join(t.TempDir(), "rules.yaml")
	write := func(n int) {
		t.Helper()
		var text strings.Builder
		text.WriteString("domain: shop\ndescriptors:\n")
		for i := range n {
			fmt.Fprintf(&text, "- {key: k%d, rate_limit: {requests_per_unit: 5, unit: second}}\n", i)
		}
		if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(1)
	r := load(t, rules.Options{Config: rules.Config{
		Rules: []string{file, "xds"}, XDS: xds.Options{Server: s.Addr, NodeID: "n"},
	}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	const many = 200_000
	sent := make([]*ratelimitv3.RateLimitDescriptor, many)
	for i := range sent {
		sent[i] = partnertest.Limit(strconv.Itoa(i), "", 1)
	}
	s.Set("2", partnertest.Domain("many", sent...))
	write(many)
	for r.Status().LoadingSince.IsZero() {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if set := r.Set(); set.Domain("many") != nil || len(set.Limits()) != 2 {
		t.Errorf("%d rules were loaded after the stop", len(set.Limits()))
	}
	redistest.Await(t, func() error { // what takes long is left behind, and ends by itself
		stacks := make([]byte, 1<<20)
		if bytes.Contains(stacks[:runtime.Stack(stacks, true)], []byte("xds.(*Source).judge(")) {
			return errors.New("an answer of the control plane is still judged")
		}
		return nil
	})
}

// The log says which limits an edit lowers, and what that means for fuller counters.
func TestLowerLimitsAreLogged(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rules.yaml")
	write := func(low, high int) {
		t.Helper()
		text := fmt.Sprintf("domain: shop\ndescriptors:\n"+
			"  - {key: low, rate_limit: {algorithm: funnel, requests_per_unit: %d, unit: hour}}\n"+
			"  - {key: high, rate_limit: {requests_per_unit: %d, unit: hour}}\n", low, high)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(20, 20)
	var log strings.Builder
	r := load(t, rules.Options{Config: rules.Config{Rules: []string{file}}, Log: slog.New(slog.NewTextHandler(&log, nil))})
	write(5, 30)
	if err := r.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	const want = `limits=1 lowered="shop low: funnel: 5 per 1h, burst 5, was funnel: 20 per 1h, burst 20"`
	if got := log.String(); strings.Count(got, "limits are lower") != 1 || !strings.Contains(got, want) {
		t.Errorf("the log has %s, want %s", got, want)
	}
}

// phases records the rules that a part gets. Rules are prepared before they are active, and reported after. Refused
// rules are neither.
func TestRulesChangeInTwoPhases(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rules.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte("domain: shop\ndescriptors:\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const one = "- {key: a, rate_limit: {requests_per_unit: 5, unit: hour}}\n"
	write(one)
	r, err := rules.New(rules.Options{Config: rules.Config{Rules: []string{file}}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	var seen []string
	note := func(phase string) {
		inForce := 0
		if set := r.Set(); set != nil {
			inForce = len(set.Limits())
		}
		seen = append(seen, fmt.Sprintf("%s: %d in force", phase, inForce))
	}
	prepare := func(next *descriptors.Set) { note(fmt.Sprint("before ", len(next.Limits()))) }
	if err := r.Load(t.Context(), prepare, func() { note("after") }, func() { note("and after") }); err != nil {
		t.Fatal(err)
	}
	write("- {kay: a}\n")
	_ = r.Reload(t.Context()) // refused
	write(one + strings.ReplaceAll(one, "key: a", "key: b"))
	if err := r.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"before 1: 0 in force", "after: 1 in force", "and after: 1 in force",
		"before 2: 1 in force", "after: 2 in force", "and after: 2 in force",
	}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// The metrics of loads follow the states of the files.
func TestMetrics(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rules.yaml")
	var r *rules.Rules
	last := ""
	for i, step := range []struct{ limit, loads string }{
		{"1", "ok 1, refused 0, now 0"},
		{"no", "ok 1, refused 1, now 1"},
		{"1", "ok 2, refused 1, now 0"},
		{"no", "ok 2, refused 2, now 1"},
		{"2", "ok 3, refused 2, now 0"},
	} {
		text := "domain: shop\ndescriptors: [{key: a, rate_limit: {unit: hour, requests_per_unit: " + step.limit + "}}]\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			r = load(t, rules.Options{Config: rules.Config{Rules: []string{file}}})
		}
		_ = r.Reload(t.Context())
		s := partnertest.Series(t, r.Metrics()...)
		if got := fmt.Sprintf("ok %s, refused %s, now %s", s[`weir_rules_loads_total{result="ok"}`],
			s[`weir_rules_loads_total{result="refused"}`], s["weir_rules_refused"]); got != step.loads {
			t.Errorf("limit %s: %s, want %s", step.limit, got, step.loads)
		}
		if s["ratelimit_service_config_load_success"] != s[`weir_rules_loads_total{result="ok"}`] ||
			s["ratelimit_service_config_load_error"] != s[`weir_rules_loads_total{result="refused"}`] {
			t.Errorf("limit %s: the metrics of envoyproxy/ratelimit differ: %v", step.limit, s)
		}
		last = s["weir_rules_last_load_timestamp_seconds"]
		if s[`weir_rules_info{hash="`+r.Status().Hash+`"}`] != "1" {
			t.Errorf("limit %s: no hash: %v", step.limit, s)
		}
	}
	if at, err := strconv.ParseFloat(last, 64); err != nil || time.Since(time.Unix(int64(at), 0)) > time.Hour {
		t.Errorf("the last load was at %s", last)
	}
}
