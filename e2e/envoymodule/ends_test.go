//go:build e2e

package envoymodule

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// setMetadata is a filter that puts headers of a request into its metadata.
const setMetadata = `{name: envoy.filters.http.header_to_metadata, typed_config: {
  "@type": type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config, request_rules: [
  {header: x-b, on_header_present: {metadata_namespace: users, key: plan, type: STRING}},
  {header: x-cost, on_header_present: {metadata_namespace: users, key: cost, type: STRING}}]}}, `

// routeOfEnds is the rest of a route beside rate_limits: metadata, and headers that show Weir's dynamic metadata.
const routeOfEnds = `metadata: {filter_metadata: {users: {tier: "2"}}}, response_headers_to_add: [
  {header: {key: x-leased, value: "%DYNAMIC_METADATA(envoy.filters.http.ratelimit:leased)%"}},
  {header: {key: x-owner, value: "%DYNAMIC_METADATA(envoy.filters.http.ratelimit:metadata)%"}}]`

// drawEnds draws a case whose entries also charge and refund when a stream is done, and read metadata. Each request is
// decided twice: on arrival, and when its stream is done.
func drawEnds(t *rapid.T, number, fronts int, units, windows []string) *drawnCase {
	d := &drawer{T: t, units: units, windows: windows}
	c := &drawnCase{number: number, front: rapid.IntRange(0, fronts-1).Draw(t, "front")}
	rules := []object{}
	for _, key := range []string{"a", "plan", "tier", "g"} {
		rule := object{"key": key}
		d.rule(rule)
		if d.rarely(2, "in flight") {
			delete(rule, "rate_limits")
			rule["rate_limit"] = object{
				"algorithm": "concurrency", "requests_per_unit": rapid.IntRange(1, 3).Draw(t, "at once"), "lease": "1h",
			}
		}
		rules = append(rules, rule)
	}
	d.dropDangling()
	c.rules = asJSON(t, object{"domain": c.domain(), "descriptors": rules})
	always := object{"generic_key": object{"descriptor_key": "g", "descriptor_value": "1"}}
	action := func() object {
		metadata := func(key, name, source string) object {
			return object{"metadata": object{
				"descriptor_key": key, "source": source, "default_value": "none",
				"metadata_key": object{"key": "users", "path": []object{{"key": name}}},
			}}
		}
		return pick(d, "action", always, object{"request_headers": object{"header_name": "x-a", "descriptor_key": "a"}},
			metadata("plan", "plan", "DYNAMIC"), metadata("tier", "tier", "ROUTE_ENTRY"))
	}
	var limits []object
	for i := range rapid.IntRange(1, 3).Draw(t, "entries") {
		now, done := object{"actions": []object{always}}, object{"actions": []object{always}, "apply_on_stream_done": true}
		if i > 0 {
			now["actions"] = []object{action()}
			done["actions"] = now["actions"]
			if d.rarely(3, "another one") {
				done["actions"] = []object{action()}
			}
		}
		if i > 0 && d.rarely(4, "cost") {
			now["hits_addend"] = object{"format": "%DYNAMIC_METADATA(users:cost)%"}
		}
		hits := object{"is_negative_hits": rapid.Bool().Draw(t, "is_negative_hits")}
		switch n := rapid.IntRange(0, 3).Draw(t, "hits"); {
		case n == 0 || i == 0: // Envoy leaves out an entry whose cost is no number, and may then not ask at all
			hits["number"] = rapid.IntRange(0, 3).Draw(t, "number")
		case n == 1:
			hits["format"] = "%RESP(x-used)%"
		default:
			hits["format"], hits["is_negative_hits"] = leased, true
		}
		done["hits_addend"] = hits
		limits = append(limits, now, done)
	}
	c.rateLimits = asJSON(t, limits)
	for range 8 {
		c.requests = append(c.requests, d.request(number))
	}
	return c
}

// TestEndsAsInTheService is TestAnswersAsTheService for what streams cost when they are done, requests in flight, and
// metadata of requests, routes and rules.
func TestEndsAsInTheService(t *testing.T) {
	for _, name := range []string{"memory", "redis"} {
		t.Run(name, func(t *testing.T) {
			stores := []string{"memory", "memory"}
			var a, b *redistest.Server
			if name == "redis" {
				a, b = redistest.Start(t), redistest.Start(t)
				stores = []string{a.URL(), b.URL()}
			}
			units, windows := calm(time.Now())
			var cases []*drawnCase
			refused := 0
			casetest.Check(t, 40, func(t *rapid.T) {
				c := drawEnds(t, len(cases), len(settings), units, windows)
				if !c.isValid() {
					refused++
					return
				}
				if cases = append(cases, c); a != nil {
					c.reverse() // others than in memory
				}
			})
			if refused > len(cases) {
				t.Errorf("%d of %d drawn rules are refused", refused, refused+len(cases))
			}
			var documents []string
			for _, c := range cases {
				documents = append(documents, c.rules)
			}
			flags := []string{"--ratelimit-headers", "--store-timeout=5s", "--dynamic-metadata"}
			w := startTwins(t, rules(t, strings.Join(documents, "\n---\n")), append(flags, "--store="+stores[0]),
				append(flags, "--store="+stores[1]), func(front int, perRoute func(domain, rateLimits string) string) string {
					var routes []string
					for _, c := range cases {
						if c.front == front {
							routes = append(routes, fmt.Sprintf(
								"{match: {prefix: /%d/}, route: {cluster: upstream}, %s, typed_per_filter_config: %s}", c.number, routeOfEnds,
								perRoute(c.domain(), c.rateLimits)))
						}
					}
					return strings.Join(append(routes, toUpstream), ", ")
				}, func(_, listener string) string {
					return strings.Replace(listener, "http_filters: [", "http_filters: ["+setMetadata, 1)
				})
			w.playEnds(t, cases)
			w.compareCounts(t)
			if a != nil && compareKeys(t, a, b) < 20 {
				t.Error("too few keys in Redis to tell")
			}
		})
	}
}

// playEnds sends all requests to both, compares the answers, and waits each time until the stream's end is counted.
func (w *twins) playEnds(t *testing.T, cases []*drawnCase) {
	t.Helper()
	seen, sent := map[string]int{}, 0.
	for _, c := range cases {
		for i, r := range c.requests {
			want, got := w.byFilter[c.front].send(t, r), w.inside[c.front].send(t, r)
			sent++
			for _, addr := range []string{w.service.HTTP, w.module} {
				await(t, w.envoy, func() error {
					if n := metric(t, addr, "weir_request_seconds_count"); n != 2*sent {
						return fmt.Errorf("request %d of %s: %.0f calls, want %.0f\n%s", i, c.rateLimits, n, 2*sent, c.rules)
					}
					return nil
				})
			}
			if wrong := unlike(want, got); wrong != "" {
				t.Fatalf("request %d, %+v: %s\nfilter: %s\nmodule: %s\nsettings: %s\nrate_limits: %s\nrules: %s", i, r, wrong,
					show(want), show(got), settings[c.front], c.rateLimits, c.rules)
			}
			count(seen, want)
			for _, name := range []string{"X-Leased", "X-Owner"} {
				if v := want.Header.Get(name); v != "" && v != "-" {
					seen[name]++
				}
			}
		}
	}
	t.Logf("%v", seen)
	for _, kind := range []string{"passed", "denied", "X-Leased", "X-Owner"} {
		if seen[kind] < 5 {
			t.Errorf("%d of %s: too few to tell", seen[kind], kind)
		}
	}
}
