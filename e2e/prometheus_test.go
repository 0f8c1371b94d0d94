//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// watched are rules whose panels all have something to show.
const watched = `
domain: shop
descriptors:
  - {key: client, rate_limit: {algorithm: funnel, requests_per_unit: 5, unit: hour}}
  - {key: trial, shadow_mode: true, rate_limit: {requests_per_unit: 1, unit: year}}
  - {key: bot, value: bad, rate_limit: {requests_per_unit: 0, unit: hour}}
`

// withData are the panels that have to show something while these rules are asked.
var withData = []string{
	"Requests",
	"Denied",
	"Rule sets in force",
	"Requests by response",
	"Decisions by outcome",
	"Denials by limit",
	"Share denied by limit",
	"Near limit by rule",
	"Shadow and quota by rule",
	"Cost by outcome",
	"Requests: p50, p99",
	"Redis: p50, p99",
	"Script calls",
	"Requests in a script call",
	"Connections",
	"Cached denials",
	"Cached denials by rule",
	"Age of the rules in force",
	"Limits",
	"Counters",
	"Bytes",
	"CPU",
	"Memory",
	"Goroutines",
	"Builds",
}

// panels are the expressions of the dashboard by their panel, as Grafana would ask them with all variables at All.
func panels(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("../examples/grafana/weir.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	values := strings.NewReplacer("$job", "weir", "$instance", ".*", "$domain", ".*", "$rule", ".*", "$__rate_interval",
		"10s")
	all := map[string][]string{}
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			all[p.Title] = append(all[p.Title], values.Replace(target.Expr))
		}
	}
	return all
}

// scraping runs Prometheus with the alerts of the examples.
func scraping(t *testing.T, weirs ...*weir) *prometheus {
	t.Helper()
	alerts, err := filepath.Abs("../examples/prometheus/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var targets []string
	for _, s := range weirs {
		targets = append(targets, s.HTTP)
	}
	config := filepath.Join(t.TempDir(), "prometheus.yaml")
	text := fmt.Sprintf("global: {scrape_interval: 100ms, evaluation_interval: 100ms}\nrule_files: [%s]\n"+
		"scrape_configs: [{job_name: weir, static_configs: [{targets: [%s]}]}]\n", alerts, strings.Join(targets, ", "))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return startPrometheus(t, config)
}

// A real Prometheus that scrapes two processes, one with Redis and one with memory, answers every question of the
// dashboard, counts what was answered, and sees an alert. It is one test, since all of that is about the same run.
func TestPrometheus(t *testing.T) {
	t.Parallel()
	proctest.Program(t, "prometheus")
	rules := ruleFile(t, watched)
	patient := []string{"--store-timeout", "5s", "--classic-metrics"}
	weirs := []*weir{
		startWeir(t, rules, append(patient, "--store", redistest.Start(t).URL())...),
		startWeir(t, rules, patient...),
	}
	clients := []pb.RateLimitServiceClient{weirs[0].client(t), weirs[1].client(t)}
	server := scraping(t, weirs...)
	rounds, asked, denied := 0, 0, 0
	ask := func(on pb.RateLimitServiceClient, key, value string) {
		res, err := on.ShouldRateLimit(t.Context(), question(key, value))
		if err != nil {
			t.Fatal(err)
		}
		asked++
		if res.GetOverallCode() == pb.RateLimitResponse_OVER_LIMIT {
			denied++
		}
	}
	round := func() { // each has a client of its own, whose sixth request is denied
		rounds++
		for i, on := range clients {
			for range 7 {
				ask(on, "client", fmt.Sprint(i, "-", rounds))
			}
			ask(on, "trial", "b")
			ask(on, "bot", "bad")
		}
	}
	all := panels(t)
	shows := func(title string) bool {
		for _, expr := range all[title] {
			values, err := server.query(expr)
			if err != nil {
				t.Fatalf("%s: %s: %v", title, expr, err)
			}
			if slices.ContainsFunc(values, func(v series) bool { return v.Value > 0 && !math.IsNaN(v.Value) }) {
				return true
			}
		}
		return false
	}
	for _, title := range withData {
		proctest.Eventually(t, title+" shows something", func() bool {
			round()
			return shows(title)
		})
	}
	for title, exprs := range all {
		for _, expr := range exprs {
			if _, err := server.query(expr); err != nil {
				t.Errorf("%s: %s: %v", title, expr, err)
			}
		}
	}
	for expr, want := range map[string]int{
		`sum(weir_decisions_total)`:                                   asked,
		`sum(weir_request_seconds_count)`:                             asked,
		`sum(weir_requests_total)`:                                    asked,
		`sum(weir_requests_total{code="over_limit"})`:                 denied,
		`sum(weir_decisions_total{outcome="denied"})`:                 denied,
		`sum(ratelimit_service_rate_limit_total_hits{domain="shop"})`: asked,
		`sum(ratelimit_service_rate_limit_over_limit{key1!="trial"})`: denied,
		`count(count by (hash) (weir_rules_info))`:                    1,
		`count(weir_store_breaker_open == 0)`:                         1,
		`sum(weir_store_errors_total) + sum(weir_panics_total)`:       0,
		`sum(weir_cached_denials_total) > bool 0`:                     1,
		`sum(weir_hits_near_limit_total{rule="client"})`:              2 * rounds, // the fifth of each client
		`sum(weir_store_batch_requests_sum) > bool 0`:                 1,
		`sum(ratelimit_service_rate_limit_shadow_mode{key1="trial"})`: 2*rounds - 2,
	} {
		proctest.Eventually(t, fmt.Sprintf("%s is %d", expr, want), func() bool {
			values, err := server.query(expr)
			if err != nil {
				t.Fatal(err)
			}
			return len(values) == 1 && values[0].Value == float64(want)
		})
	}

	proctest.Replace(t, rules, "domain: shop\ndescriptors: [{key: client, rate_limit: {unit: fortnight}}]\n")
	proctest.Eventually(t, "WeirRulesRefused is pending", func() bool {
		states, err := server.alerts()
		if err != nil {
			t.Fatal(err)
		}
		for name := range states {
			// A busy machine: WeirDown, since a scrape has 100 ms, WeirStoreSlow and WeirLate.
			if !slices.Contains([]string{"WeirRulesRefused", "WeirDenialsJump", "WeirStoreSlow", "WeirDown", "WeirLate"}, name) {
				t.Fatalf("the alert %s is %s", name, states[name])
			}
		}
		return states["WeirRulesRefused"] == "pending"
	})
}
