package metrics_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/internal/metrics"
)

// domains are rules of domains with these names.
func domains(tb testing.TB, names ...string) *descriptors.Set {
	tb.Helper()
	var files []rulefile.File
	for _, name := range names {
		text := fmt.Sprintf("domain: %s\ndescriptors: [{key: a, rate_limit: {unit: hour, requests_per_unit: 1}}]\n", name)
		files = append(files, rulefile.File{Name: name + ".yaml", Data: []byte(text)})
	}
	set, err := rulefile.Compile(files)
	if err != nil {
		tb.Fatal(err)
	}
	return set
}

// Requests count once, whatever their domain's limits; only domains that have rules make series.
func TestRequests(t *testing.T) {
	m := metrics.New(metrics.Options{MaxRules: 2})
	before := domains(t, "shop", "web")
	m.Prepare(before)
	m.Answered(before.Domain("shop"), false)
	m.Answered(before.Domain("shop"), true)
	m.Answered(before.Domain("web"), true)
	m.Answered(before.Domain("nobody"), false) // nil
	want := map[string]string{
		`weir_requests_total{code="ok",domain="shop"}`: "1", `weir_requests_total{code="over_limit",domain="shop"}`: "1",
		`weir_requests_total{code="ok",domain="web"}`: "0", `weir_requests_total{code="over_limit",domain="web"}`: "1",
		`weir_requests_total{code="ok",domain="(other)"}`:         "1",
		`weir_requests_total{code="over_limit",domain="(other)"}`: "0",
	}
	if diff := cmp.Diff(want, only(t, m, "weir_requests_total")); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}

	// After a reload: one is gone, one stays, one is beyond the bound, and a request is still under way in the old rules.
	after := domains(t, "api", "shop", "zoo")
	m.Prepare(after)
	m.Answered(before.Domain("shop"), false)
	m.Answered(after.Domain("shop"), false)
	m.Answered(before.Domain("web"), false)
	m.Answered(after.Domain("zoo"), false)
	want = map[string]string{
		`weir_requests_total{code="ok",domain="api"}`: "0", `weir_requests_total{code="over_limit",domain="api"}`: "0",
		`weir_requests_total{code="ok",domain="shop"}`: "3", `weir_requests_total{code="over_limit",domain="shop"}`: "1",
		`weir_requests_total{code="ok",domain="(other)"}`:         "3",
		`weir_requests_total{code="over_limit",domain="(other)"}`: "0",
	}
	if diff := cmp.Diff(want, only(t, m, "weir_requests_total")); diff != "" {
		t.Errorf("after the reload: -want +got\n%s", diff)
	}
}

func TestRejected(t *testing.T) {
	m := newMetrics()
	m.Rejected(codes.ResourceExhausted)
	m.Rejected(codes.Internal)
	m.Rejected(codes.Internal)
	m.Rejected(codes.Code(1000))
	want := map[string]string{
		`weir_requests_rejected_total{code="ResourceExhausted"}`: "1",
		`weir_requests_rejected_total{code="Internal"}`:          "2",
		`weir_requests_rejected_total{code="Unknown"}`:           "1",
	}
	if diff := cmp.Diff(want, only(t, m, "weir_requests_rejected_total")); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestAnsweredAllocatesNothing(t *testing.T) {
	m := newMetrics()
	set := domains(t, "shop")
	m.Prepare(set)
	if n := testing.AllocsPerRun(100, func() { m.Answered(set.Domain("shop"), true) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
