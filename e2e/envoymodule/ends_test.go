//go:build e2e

package envoymodule

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// setMetadata is a filter that puts headers of a request into its metadata.
const setMetadata = `{name: envoy.filters.http.header_to_metadata, typed_config: {
  "@type": type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config, request_rules: [
  {header: x-b, on_header_present: {metadata_namespace: users, key: plan, type: STRING}},
  {header: x-cost, on_header_present: {metadata_namespace: users, key: cost, type: STRING}}]}}, `

// routeOfEnds is the rest of a route beside rate_limits: metadata, and headers that show Weir's dynamic metadata.
const routeOfEnds = `, metadata: {filter_metadata: {users: {tier: "2"}}}, response_headers_to_add: [
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
			cases := drawCases(t, casetest.Pick(20, 40), drawEnds)
			var a, b *redistest.Server
			if name == "redis" {
				a, b = redistest.Start(t), redistest.Start(t)
				stores = []string{a.URL(), b.URL()}
				for i := range cases {
					cases[i].reverse() // others than in memory
				}
			}
			flags := []string{"--ratelimit-headers", "--store-timeout=5s", "--dynamic-metadata"}
			w := startTwinsWith(t, cases, append(flags, "--store="+stores[0]), append(flags, "--store="+stores[1]), routeOfEnds,
				func(_, listener string) string {
					return strings.Replace(listener, "http_filters: [", "http_filters: ["+setMetadata, 1)
				})
			sent := 0.
			w.playAll(t, cases, func() { // waits until the stream's end is counted
				sent++
				for _, addr := range []string{w.service.HTTP, w.module} {
					proctest.Eventually(t, "the end of a stream is counted", func() bool {
						return metric(t, addr, "weir_request_seconds_count") == 2*sent
					})
				}
			}, "passed", "denied", "X-Leased", "X-Owner")
			w.compareCounts(t)
			if a != nil && compareKeys(t, a, b) < 20 {
				t.Error("too few keys in Redis to tell")
			}
		})
	}
}
