//go:build e2e

package envoymodule

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
)

type object = map[string]any

// drawnCase is a domain's rules, a route with rate_limits, and requests to it.
type drawnCase struct {
	number     int
	front      int    // index of the pair of listeners that have the route
	rules      string // a document in JSON
	rateLimits string // in JSON
	requests   []drawnRequest
}

func (c *drawnCase) domain() string { return fmt.Sprintf("d%d", c.number) }

type drawnRequest struct {
	method, path string
	headers      [][2]string
	body         string
}

// calm are units and windows whose counters stay in one segment while the test runs. Others would turn over between the
// two answers that are compared: a longer one is in their place, so that the cases are the same at any time of day.
func calm(now time.Time) (units, windows []string) {
	const long, segments = 2 * time.Minute, 10
	const unit, window = "year", 9000 * time.Hour // in place of others
	isCalm := func(window time.Duration) bool {
		segment := window / segments
		return segment-time.Duration(now.UnixNano())%segment > long
	}
	for _, u := range []string{"hour", "day", "week", "month", "year"} {
		if isCalm(map[string]time.Duration{
			"hour": time.Hour, "day": 24 * time.Hour, "week": 168 * time.Hour, "month": 720 * time.Hour, "year": 8760 * time.Hour,
		}[u]) {
			units = append(units, u)
		} else {
			units = append(units, unit)
		}
	}
	for _, minutes := range []int{60, 90, 180, 300, 1440, 1860} {
		w := time.Duration(minutes) * time.Minute
		if !isCalm(w) {
			w = window
		}
		windows = append(windows, w.String())
	}
	return units, windows
}

// drawer draws cases.
type drawer struct {
	*rapid.T

	units, windows []string
	limits         []object // of the rules drawn so far
}

func pick[T any](d *drawer, label string, values ...T) T {
	return rapid.SampledFrom(values).Draw(d.T, label)
}

// rarely is true once in n times.
func (d *drawer) rarely(n int, label string) bool { return rapid.IntRange(1, n).Draw(d.T, label) == n }

// at is the element of a list that changes with the time of day: the number that is drawn does not.
func (d *drawer) at(list []string, label string) string {
	return list[rapid.IntRange(0, 99).Draw(d.T, label)%len(list)]
}

func drawCase(t *rapid.T, number, fronts int, units, windows []string) *drawnCase {
	d := &drawer{T: t, units: units, windows: windows}
	c := &drawnCase{number: number, front: rapid.IntRange(0, fronts-1).Draw(t, "front")}
	rules := object{"domain": c.domain(), "descriptors": d.level(2)}
	d.dropDangling()
	c.rules = asJSON(t, rules)
	limits := make([]object, rapid.IntRange(1, 4).Draw(t, "entries"))
	for i := range limits {
		limits[i] = d.rateLimit()
	}
	c.rateLimits = asJSON(t, limits)
	for range 12 {
		c.requests = append(c.requests, d.request(number))
	}
	return c
}

// dropDangling removes each replaces that names no limit, or the limit itself.
func (d *drawer) dropDangling() {
	named := map[any]bool{}
	for _, limit := range d.limits {
		named[limit["name"]] = true
	}
	for _, limit := range d.limits {
		if replaced, ok := limit["replaces"].([]object); ok {
			if name := replaced[0]["name"]; !named[name] || name == limit["name"] {
				delete(limit, "replaces")
			}
		}
	}
}

// isValid reports whether Weir loads the rules.
func (c *drawnCase) isValid() bool {
	_, err := rulefile.Compile([]rulefile.File{{Name: "rules.yaml", Data: []byte(c.rules)}})
	return err == nil
}

func asJSON(tb rapid.TB, value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		tb.Fatal(err)
	}
	return string(text)
}

// level draws rules that begin with a key, and as many levels below them.
func (d *drawer) level(levels int) []object {
	var out []object
	for _, key := range []string{"a", "b", "g", "remote_address", "hv"} {
		for _, form := range []string{"one", "list", "pattern", "any"} {
			if !d.rarely(map[string]int{"one": 4, "list": 6, "pattern": 4, "any": 2}[form]*2/levels, form) {
				continue
			}
			rule := object{"key": key}
			switch form {
			case "one":
				rule["value"] = "1"
			case "list":
				rule["values"] = []string{"3", "4"}
			case "pattern":
				rule["value"] = "2*"
			}
			if form == "list" || form == "pattern" {
				rule["share_threshold"] = rapid.Bool().Draw(d.T, "share_threshold")
			}
			d.rule(rule)
			if levels > 1 && rapid.Bool().Draw(d.T, "children") {
				rule["descriptors"] = d.level(levels - 1)
			}
			out = append(out, rule)
		}
	}
	if len(out) == 0 {
		out = append(out, object{"key": "none"})
	}
	return out
}

// rule draws what a rule has beside what it matches.
func (d *drawer) rule(rule object) {
	if d.rarely(6, "shadow_mode") {
		rule["shadow_mode"] = true
	}
	if d.rarely(5, "quota_mode") {
		rule["quota_mode"] = true
	}
	if d.rarely(8, "hash_values") {
		rule["hash_values"] = true
	}
	if d.rarely(6, "metadata") {
		rule["metadata"] = object{"owner": "shop", "level": 3}
	}
	if d.rarely(3, "response") {
		headers := object{"X-Rule": fmt.Sprint(rule["key"]), "X-Upstream": "no"}
		if !d.rarely(3, "no content-type") {
			headers["Content-Type"] = "application/json"
		}
		body := pick(d, "body", "", `{"denied": true}`, strings.Repeat("long ", 400))
		rule["response"] = object{"headers": headers, "body": body}
	}
	switch n := rapid.IntRange(0, 7).Draw(d.T, "limits"); {
	case n == 0: // known, and unlimited
	case n < 6:
		rule["rate_limit"] = d.limit(0)
	default:
		limits := []object{}
		for i := range rapid.IntRange(1, 3).Draw(d.T, "number of limits") {
			limits = append(limits, d.limit(i+1))
		}
		rule["rate_limits"] = limits
	}
}

// limit draws a limit; number is 0 for the only one of its rule.
func (d *drawer) limit(number int) object {
	limit := object{}
	if number > 0 || d.rarely(3, "named") {
		limit["name"] = fmt.Sprintf("n%d", number)
	}
	if d.rarely(8, "replaces") {
		limit["replaces"] = []object{{"name": fmt.Sprintf("n%d", rapid.IntRange(0, 3).Draw(d.T, "replaced"))}}
	}
	d.limits = append(d.limits, limit)
	if number == 0 && d.rarely(10, "unlimited") {
		limit["unlimited"] = true
		return limit
	}
	if d.rarely(8, "none at all") {
		limit["requests_per_unit"] = 0
	} else {
		limit["requests_per_unit"] = rapid.IntRange(1, 4).Draw(d.T, "requests_per_unit")
	}
	if d.rarely(3, "window") {
		limit["window"] = d.at(d.windows, "window")
	} else {
		limit["unit"] = d.at(d.units, "unit")
	}
	if d.rarely(3, "charge_denied") {
		limit["charge_denied"] = pick(d, "charge", "none", "remaining", "full")
	}
	if rapid.Bool().Draw(d.T, "on_store_failure") {
		limit["on_store_failure"] = pick(d, "policy", "allow", "deny", "local", "error")
	}
	algorithm := pick(d, "algorithm", "", "fixed_window", "funnel", "token_bucket", "sliding_window", "sliding_log",
		"smooth_bursty", "smooth_warming_up", "concurrency")
	if algorithm == "" {
		return limit
	}
	limit["algorithm"] = algorithm
	switch algorithm {
	case "fixed_window":
		limit["align"] = pick(d, "align", "epoch", "first_hit")
	case "funnel", "token_bucket":
		if rapid.Bool().Draw(d.T, "burst") {
			limit["burst"] = rapid.IntRange(1, 5).Draw(d.T, "burst")
		}
		if algorithm == "token_bucket" {
			limit["initial"], limit["refill"] = pick(d, "initial", "full", "full", "empty"), pick(d, "refill", "greedy", "interval")
		}
	case "sliding_window":
		limit["oldest"], limit["segments"] = pick(d, "oldest", "proportional", "full", "none"), pick(d, "segments", 1, 5, 10)
	case "concurrency":
		delete(limit, "unit")
		delete(limit, "window")
		limit["lease"] = "1h"
	}
	return limit
}

// rateLimit draws an entry of rate_limits.
func (d *drawer) rateLimit() object {
	actions := make([]object, 1+rapid.IntRange(0, 2).Draw(d.T, "more actions")/2)
	for i := range actions {
		actions[i] = d.action()
	}
	limit := object{"actions": actions}
	if d.rarely(6, "own limit") {
		units := slices.Delete(slices.Clone(d.units), 2, 3) // Envoy has no week
		limit["limit"] = object{"rate_limit": object{
			"requests_per_unit": rapid.IntRange(0, 3).Draw(d.T, "own requests_per_unit"),
			"unit":              strings.ToUpper(d.at(units, "own unit")),
		}}
	}
	if d.rarely(3, "hits_addend") {
		hits := object{}
		if rapid.Bool().Draw(d.T, "number") {
			hits["number"] = pick(d, "hits", 0, 1, 2, 5)
		} else {
			hits["format"] = "%REQ(x-cost)%"
		}
		if d.rarely(4, "is_negative_hits") {
			hits["is_negative_hits"] = true
		}
		limit["hits_addend"] = hits
	}
	if d.rarely(4, "x_ratelimit_option") {
		limit["x_ratelimit_option"] = pick(d, "option", "OFF", "DRAFT_VERSION_03")
	}
	return limit
}

func (d *drawer) action() object {
	switch rapid.IntRange(0, 9).Draw(d.T, "action") {
	case 0, 1, 2, 3:
		return object{"request_headers": object{"header_name": "x-a", "descriptor_key": "a"}}
	case 4, 5:
		return object{"request_headers": object{
			"header_name": "x-b", "descriptor_key": "b", "skip_if_absent": rapid.Bool().Draw(d.T, "skip_if_absent"),
		}}
	case 6:
		return object{"generic_key": object{"descriptor_key": "g", "descriptor_value": pick(d, "value", "1", "2", "3", "5")}}
	case 7:
		return object{"remote_address": object{}}
	case 8:
		return object{"query_parameters": object{"query_parameter_name": "q", "descriptor_key": "b"}}
	default:
		return object{"header_value_match": object{
			"descriptor_key": "hv", "descriptor_value": pick(d, "value", "1", "3", "5"),
			"headers": []object{{"name": "x-a", "string_match": object{"prefix": "2"}}},
		}}
	}
}

func (d *drawer) request(number int) drawnRequest {
	r := drawnRequest{method: "GET", path: fmt.Sprintf("/%d/", number)}
	add := func(name string, values ...string) {
		r.headers = append(r.headers, [2]string{name, pick(d, name, values...)})
	}
	if d.rarely(4, "query") {
		r.path += "?q=" + pick(d, "q", "1", "25", "5")
	}
	if !d.rarely(6, "without x-a") {
		add("x-a", "1", "1", "2", "22", "3", "5")
	}
	if d.rarely(4, "another x-a") {
		add("x-a", "1", "2", "22", "5")
	}
	if !d.rarely(3, "without x-b") {
		add("x-b", "1", "2", "4", "5")
	}
	if d.rarely(3, "x-cost") {
		add("x-cost", "0", "1", "2", "3", "nonsense")
	}
	if d.rarely(5, "x-limits") {
		add("x-limits", "yes") // the upstream answers with X-RateLimit headers of its own
	}
	switch rapid.IntRange(0, 11).Draw(d.T, "method") {
	case 0:
		r.method = "HEAD"
	case 1:
		r.method, r.body = "POST", "body"
	case 2, 3:
		r.method, r.body = "POST", "\x00\x00\x00\x00\x00"
		add("content-type", "application/grpc")
	}
	return r
}

// drawCases draws valid cases.
func drawCases(
	t *testing.T, n int, draw func(t *rapid.T, number, fronts int, units, windows []string) *drawnCase,
) (cases []*drawnCase) {
	t.Helper()
	units, windows := calm(time.Now())
	refused := 0
	casetest.Check(t, n, func(t *rapid.T) {
		c := draw(t, len(cases), len(settings), units, windows)
		if !c.isValid() {
			refused++
			return
		}
		cases = append(cases, c)
	})
	if refused > len(cases) {
		t.Errorf("%d of %d drawn rules are refused", refused, refused+len(cases))
	}
	return cases
}
