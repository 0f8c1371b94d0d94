package metrics_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/internal/admin"
	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/metrics"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// sampleOf is one Sample: the counts of each limit.
func sampleOf(m *metrics.Metrics) (limits map[adminapi.LimitName]adminapi.Counts, total adminapi.Counts) {
	limits = map[adminapi.LimitName]adminapi.Counts{}
	total = m.Sample(func(c adminapi.LimitCounts) { limits[c.LimitName] = c.Counts })
	return limits, total
}

// A sample has what was counted since the one before: by rule, and across a reload.
func TestSample(t *testing.T) {
	m := metrics.New(metrics.Options{MaxRules: 2, NearLimitRatio: 0.8})
	rules := rule("a") + "\n  - " + rule("b") + "\n  - " + rule("c")
	set := compile(t, rules)
	m.Prepare(set)
	decided := func(i int, o decide.Outcome, hits, remaining int64) {
		l := set.Limits()[i]
		m.Decided(l, o, hits, &limiter.Decision{Allowed: !o.Unfit(), Remaining: remaining})
		m.Answered(set.Domains()[0], o == decide.Denied)
	}
	decided(0, decide.Allowed, 1, 9)
	decided(0, decide.Allowed, 1, 0) // near
	decided(0, decide.Denied, 1, 0)
	decided(0, decide.ShadowDenied, 1, 0)
	decided(0, decide.Uncharged, 1, 5)
	decided(1, decide.AllowedLocally, 1, 5)
	decided(2, decide.Allowed, 1, 9) // beyond MaxRules
	a, b := adminapi.LimitName{Domain: "shop", Rule: "a"}, adminapi.LimitName{Domain: "shop", Rule: "b"}
	limits, total := sampleOf(m)
	want := map[adminapi.LimitName]adminapi.Counts{
		a: {Allowed: 2, Denied: 2, Near: 1}, b: {Allowed: 1},
	}
	if diff := cmp.Diff(want, limits); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if want := (adminapi.Counts{Allowed: 6, Denied: 1, Near: 1}); total != want {
		t.Errorf("total %+v, want %+v", total, want)
	}
	if limits, total = sampleOf(m); len(limits) != 0 || total != (adminapi.Counts{}) {
		t.Errorf("without requests: %v, %+v", limits, total)
	}
	decided(0, decide.Allowed, 4, 1) // costs 4, of which one hit is near: a quarter of a request
	m.Prepare(compile(t, rules))
	if limits, _ = sampleOf(m); limits[a] != (adminapi.Counts{Allowed: 1}) {
		t.Errorf("after a reload: %v", limits)
	}
}

// What Envoys decided by quotas has a metric of its own, with the labels of a limit, and is in samples: so nothing
// counts twice.
func TestDecidedByEnvoys(t *testing.T) {
	m := metrics.New(metrics.Options{MaxRules: 2, NearLimitRatio: 0.8})
	set := compile(t, rule("a")+"\n  - "+rule("b")+"\n  - "+rule("c"))
	m.Prepare(set)
	m.Decided(set.Limits()[0], decide.Allowed, 1, &limiter.Decision{Allowed: true, Remaining: 9})
	for i, l := range set.Limits() {
		m.DecidedByEnvoys(l, decide.Allowed, uint64(10*(i+1)))
	}
	m.DecidedByEnvoys(set.Limits()[0], decide.Denied, 5)
	m.DecidedByEnvoys(set.Limits()[1], decide.ShadowDenied, 6)
	m.ReportedByEnvoys(70, 5)
	series := func(rule, outcome, domain string) string {
		return fmt.Sprintf(`weir_quota_decisions_total{by="envoy",domain=%q,limit=%q,outcome=%q,rule=%q}`, domain,
			map[bool]string{true: rule}[rule == "(other)"], outcome, rule)
	}
	want := map[string]string{
		series("a", "allowed", "shop"): "10", series("a", "denied", "shop"): "5",
		series("b", "allowed", "shop"): "20", series("b", "denied", "shop"): "0", series("b", "shadow_denied", "shop"): "6",
		series("(other)", "allowed", "(other)"): "30", series("(other)", "denied", "(other)"): "0",
	}
	if diff := cmp.Diff(want, only(t, m, "weir_quota_decisions_total")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	here := map[string]string{}
	for name, value := range only(t, m, "weir_decisions_total") {
		if value != "0" {
			here[name] = value
		}
	}
	if diff := cmp.Diff(map[string]string{
		`weir_decisions_total{domain="shop",limit="",outcome="allowed",rule="a"}`: "1",
	}, here); diff != "" {
		t.Errorf("what was decided here (-want +got):\n%s", diff)
	}
	limits, total := sampleOf(m)
	counts := map[adminapi.LimitName]adminapi.Counts{
		{Domain: "shop", Rule: "a"}: {Allowed: 11, Denied: 5}, {Domain: "shop", Rule: "b"}: {Allowed: 20, Denied: 6},
	}
	if diff := cmp.Diff(counts, limits); diff != "" {
		t.Errorf("sample (-want +got):\n%s", diff)
	}
	if want := (adminapi.Counts{Allowed: 70, Denied: 5}); total != want {
		t.Errorf("total %+v, want %+v", total, want)
	}
	if limits, total = sampleOf(m); len(limits) != 0 || total != (adminapi.Counts{}) {
		t.Errorf("without requests: %v, %+v", limits, total)
	}
	if counts := m.Decisions(set.Limits()[0]); counts[decide.Allowed] != 11 {
		t.Errorf("decided here and by Envoys: %v", counts)
	}
}

// BenchmarkSample measures a sample, which is taken every 5 seconds, of this number of rules that all have had
// requests.
func BenchmarkSample(b *testing.B) {
	for _, n := range []int{1_000, 100_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			m := metrics.New(metrics.Options{MaxRules: n, NearLimitRatio: 0.8})
			rules := make([]string, n)
			for i := range rules {
				rules[i] = rule(fmt.Sprint("rule-", i))
			}
			set := compile(b, strings.Join(rules, "\n  - "))
			m.Prepare(set)
			h := admin.NewHistory(m.Sample)
			for b.Loop() {
				b.StopTimer()
				for _, l := range set.Limits() {
					m.Decided(l, decide.Allowed, 1, &limiter.Decision{Allowed: true})
				}
				b.StartTimer()
				h.Read()
				m.Sample(func(adminapi.LimitCounts) {})
			}
		})
	}
}
