//go:build e2e

package actions_test

import (
	"encoding/json"
	"net/netip"
	"strconv"
	"strings"

	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/internal/embedded/actions"
)

// drawnRoute is one list of rate_limits, and requests to a route that has them.
type drawnRoute struct {
	number     int
	rateLimits string // in JSON
	ofRoute    bool   // the route's own, else those of its typed_per_filter_config
	requests   []*drawnRequest
}

type drawnRequest struct {
	path    string
	headers [][2]string
}

type object = map[string]any

func drawRoute(t *rapid.T, number int) *drawnRoute {
	route := &drawnRoute{number: number, ofRoute: rapid.IntRange(0, 3).Draw(t, "of the route") == 0}
	limits := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) object { return drawLimit(t, route.ofRoute) }), 1, 3)
	text, err := json.Marshal(limits.Draw(t, "rate_limits"))
	if err != nil {
		t.Fatal(err)
	}
	route.rateLimits = string(text)
	for range 6 {
		route.requests = append(route.requests, drawRequest(t))
	}
	return route
}

// maybe sets a field in one of two objects.
func maybe(t *rapid.T, o object, field string, value any) {
	if rapid.Bool().Draw(t, field) {
		o[field] = value
	}
}

func oneOf[T any](t *rapid.T, values ...T) T { return rapid.SampledFrom(values).Draw(t, "value") }

// drawLimit draws an entry of rate_limits.
func drawLimit(t *rapid.T, ofRoute bool) object {
	limit := object{"actions": rapid.SliceOfN(rapid.Custom(drawAction), 1, 3).Draw(t, "actions")}
	if oneOf(t, 0, 0, 0, 1) == 1 {
		limit["apply_on_stream_done"] = true
	}
	if oneOf(t, 0, 0, 0, 1) == 1 {
		limit["limit"] = object{"rate_limit": object{
			"requests_per_unit": oneOf(t, 0, 7), "unit": oneOf(t, "SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR"),
		}}
	}
	if !ofRoute && rapid.Bool().Draw(t, "hits_addend") {
		hits := object{}
		if rapid.Bool().Draw(t, "number") {
			hits["number"] = oneOf(t, 0, 1, 1000000000)
		} else {
			hits["format"] = oneOf(t, "%RESP(X-Cost)%", "%RESP(x-none?x-cost):1%", "%RESP(x-none)%", "%REQ(x-cost)%", "%REQ(X-Cost?x-a)%", "%REQ(x-cost):2%", "%REQUEST_HEADER(x-cost)%",
				"%DYNAMIC_METADATA(set:cost)%", "%DYNAMIC_METADATA(set:text)%",
				"%DYNAMIC_METADATA(set:none)%", "%DYNAMIC_METADATA(hdr:n)%", "%DYNAMIC_METADATA(hdr:m)%")
		}
		maybe(t, hits, "is_negative_hits", true)
		limit["hits_addend"] = hits
	}
	maybe(t, limit, "x_ratelimit_option", "OFF")
	return limit
}

func drawAction(t *rapid.T) object {
	a := object{}
	switch rapid.IntRange(1, 10).Draw(t, "action") {
	case 1:
		a["descriptor_value"] = oneOf(t, "v", "w w", "100%", "a%%b", "é")
		maybe(t, a, "descriptor_key", oneOf(t, "k", ""))
		maybe(t, a, "default_value", "unused")
		return object{"generic_key": a}
	case 2, 3:
		a["header_name"], a["descriptor_key"] = drawHeaderName(t), oneOf(t, "h", "i")
		maybe(t, a, "skip_if_absent", rapid.Bool().Draw(t, "skip_if_absent"))
		return object{"request_headers": a}
	case 4:
		if oneOf(t, "source", "destination") == "source" {
			return object{"source_cluster": a}
		}
		return object{"destination_cluster": a}
	case 5:
		return object{"remote_address": a}
	case 6:
		maybe(t, a, "v4_prefix_mask_len", oneOf(t, 0, 1, 8, 23, 32))
		maybe(t, a, "v6_prefix_mask_len", oneOf(t, 0, 1, 48, 64, 96, 112, 113, 127, 128))
		return object{"masked_remote_address": a}
	case 7:
		a["descriptor_value"] = "matched"
		maybe(t, a, "descriptor_key", "hk")
		maybe(t, a, "expect_match", rapid.Bool().Draw(t, "expect_match"))
		a["headers"] = rapid.SliceOfN(rapid.Custom(drawHeaderMatcher), 1, 2).Draw(t, "headers")
		return object{"header_value_match": a}
	case 8:
		a["query_parameter_name"], a["descriptor_key"] = oneOf(t, "q", "p", "Q", "é", "a b"), "qk"
		maybe(t, a, "skip_if_absent", rapid.Bool().Draw(t, "skip_if_absent"))
		return object{"query_parameters": a}
	case 9:
		a["descriptor_value"] = "matched"
		maybe(t, a, "descriptor_key", "mk")
		maybe(t, a, "expect_match", rapid.Bool().Draw(t, "expect_match"))
		a["query_parameters"] = rapid.SliceOfN(rapid.Custom(drawQueryMatcher), 1, 2).Draw(t, "query_parameters")
		return object{"query_parameter_value_match": a}
	default:
		a["descriptor_key"] = "md"
		ns := oneOf(t, "set", "route", "hdr")
		path := []object{{"key": oneOf(t, "text", "empty", "n", "none", "m")}}
		a["metadata_key"] = object{"key": ns, "path": path}
		maybe(t, a, "default_value", oneOf(t, "else", ""))
		maybe(t, a, "source", oneOf(t, "DYNAMIC", "ROUTE_ENTRY"))
		maybe(t, a, "skip_if_absent", true)
		return object{"metadata": a}
	}
}

func drawHeaderName(t *rapid.T) string {
	return oneOf(t, "x-a", "X-A", "x-b", "X-cost", "x-miss", ":path", ":method", "host", ":authority")
}

func drawHeaderMatcher(t *rapid.T) object {
	m := object{"name": drawHeaderName(t)}
	maybe(t, m, "invert_match", true)
	if oneOf(t, 0, 0, 1) == 1 {
		m["treat_missing_header_as_empty"] = true
	}
	switch rapid.IntRange(0, 5).Draw(t, "match") {
	case 0:
	case 1:
		m["present_match"] = rapid.Bool().Draw(t, "present_match")
	case 2:
		m["range_match"] = object{"start": oneOf(t, -5, 0, 7), "end": oneOf(t, 0, 7, 100)}
	default:
		m["string_match"] = drawStringMatcher(t)
	}
	return m
}

func drawQueryMatcher(t *rapid.T) object {
	m := object{"name": oneOf(t, "q", "p", "Q")}
	switch rapid.IntRange(0, 3).Draw(t, "match") {
	case 0:
	case 1:
		m["present_match"] = rapid.Bool().Draw(t, "present_match")
	default:
		m["string_match"] = drawStringMatcher(t)
	}
	return m
}

var regexes = []string{
	".*", "a.*", "[ab]+", "^a$", "a|b", "(?i)A", "é", `\d+`, "$", "a$|x", "[^a]*", ".b?", "..", "[^x]", `\pL*`, "[é]+",
	`[\x80-\xff]+`, `\W`, `(a)\B.*`, "(?s).", "a{1,2}",
}

func drawStringMatcher(t *rapid.T) object {
	m := object{}
	kind := oneOf(t, "exact", "prefix", "suffix", "contains", "safe_regex")
	if kind == "safe_regex" {
		m[kind] = object{"regex": oneOf(t, regexes...)}
		return m
	}
	m[kind] = oneOf(t, "a", "B", "ab", "é", "É")
	maybe(t, m, "ignore_case", true)
	return m
}

func drawRequest(t *rapid.T) *drawnRequest {
	req := &drawnRequest{path: oneOf(t, "", "x", "x%20y")}
	if n := rapid.IntRange(0, 3).Draw(t, "parameters"); n > 0 {
		var parts []string
		for range n {
			part := oneOf(t, "q", "p", "Q", "%71", "", "%C3%A9", "%", "a%20b", "a+b", "q?q")
			if rapid.Bool().Draw(t, "=") {
				part += "=" + oneOf(t, "", "a", "A", "%41", "%4", "%zz", "%", "a+b", "%C3%A9", "%ff", "b=c", "%00", "ab", "%25", "%2")
			}
			parts = append(parts, part)
		}
		req.path += "?" + strings.Join(parts, "&")
	}
	values := []string{"", "a", "A", "ab", "b", "aB", "7", "-5", "+6", "a,b", "é", "\xff", "a\xffb", "99999999999999999999"}
	for _, name := range []string{"x-a", "X-B", "x-a"} {
		if rapid.Bool().Draw(t, name) {
			req.headers = append(req.headers, [2]string{name, oneOf(t, values...)})
		}
	}
	if rapid.Bool().Draw(t, "x-cost") {
		req.headers = append(req.headers, [2]string{"x-cost", oneOf(t, "0", "3", "12345", "1.9", "1e3", "1e300", "-1", "-0",
			"0x10", "0X1f", "0x1p4", "0x1.8", "0x", "0x.", "0xg", "1p4", "1_0", "0x1_0", "+4", "a", "", "1000000000", "1000000001", "inf", "Infinity", ".", ".5", "5.", "1e-400")})
	}
	if rapid.Bool().Draw(t, "x-forwarded-for") {
		req.headers = append(req.headers, [2]string{"x-forwarded-for", oneOf(t, "10.1.2.3", "10.1.9.9", "0.0.0.0",
			"255.255.255.255", "2001:db8::1", "2001:db8:0:0:1:0:0:1", "2001:db8:0:1:1:1:1:1", "::", "::1", "::1:0", "::10.1.2.3",
			"::ffff:10.1.2.3", "::fffe:10.1.2.3", "fe80::1", "ffff::ffff", "nobody")})
	}
	if rapid.Bool().Draw(t, "x-m") {
		req.headers = append(req.headers, [2]string{"x-m", oneOf(t, "m", "17", "é")})
	}
	if rapid.Bool().Draw(t, "x-mn") {
		req.headers = append(req.headers, [2]string{"x-mn", oneOf(t, "2", "2.5", "-3")})
	}
	return req
}

// metadata is the metadata of each route, and the dynamic metadata that a filter sets on each request.
const metadata = `{"text": "t", "empty": "", "n": 5, "cost": 4}`

// asEnvoySeesIt is the request with what Envoy adds to it.
func (r *drawnRequest) asEnvoySeesIt() *request {
	req := &request{addr: "127.0.0.1", metadata: map[string]actions.MetadataValue{}}
	req.headers = [][2]string{{":path", r.path}, {":method", "GET"}, {":authority", "shop.example"}}
	for _, h := range r.headers {
		h[0] = strings.ToLower(h[0])
		switch h[0] {
		case "x-forwarded-for":
			if addr, err := netip.ParseAddr(h[1]); err == nil {
				req.addr = addr.String()
			}
		case "x-m":
			req.metadata["hdr.m"] = actions.MetadataValue{Text: []byte(h[1])}
		case "x-mn":
			n, err := strconv.ParseFloat(h[1], 64)
			if err == nil {
				req.metadata["hdr.n"] = actions.MetadataValue{IsNumber: true, Number: n}
			}
		}
		req.headers = append(req.headers, h)
	}
	var values map[string]any
	if err := json.Unmarshal([]byte(metadata), &values); err != nil {
		return nil
	}
	for _, prefix := range []string{"set.", "route:route."} {
		for name, value := range values {
			switch value := value.(type) {
			case string:
				req.metadata[prefix+name] = actions.MetadataValue{Text: []byte(value)}
			case float64:
				req.metadata[prefix+name] = actions.MetadataValue{IsNumber: true, Number: value}
			}
		}
	}
	return req
}
