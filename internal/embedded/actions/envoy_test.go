//go:build e2e

package actions_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/internal/embedded/actions"
	"github.com/weir-ratelimit/weir/internal/test/envoytest"
	"github.com/weir-ratelimit/weir/internal/test/launch"
	"github.com/weir-ratelimit/weir/internal/test/longtest"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// TestEnvoyMakesTheSameDescriptors draws rate_limits and requests. A real Envoy has a route for each of the drawn
// rate_limits, and its ratelimit filter asks a server of the test, which sees the descriptors that a Plan must make.
func TestEnvoyMakesTheSameDescriptors(t *testing.T) {
	var drawn []*drawnRoute
	longtest.Check(t, 600, func(t *rapid.T) { drawn = append(drawn, drawRoute(t, len(drawn))) })
	for _, m := range matches {
		drawn = append(drawn, &drawnRoute{
			number: len(drawn), rateLimits: toJSON(t, "[{actions: [{"+m.action+"}]}]"),
			requests: []*drawnRequest{{path: m.path, headers: m.headers}},
		})
	}
	server := newRecorder(t)
	envoy := envoytest.Start(t, envoyConfig(t, server.addr, drawn))
	client := dial(t, envoy.Listener("front"))
	seen := map[string]int{}
	for _, route := range drawn {
		plan := mustParse(t, route.rateLimits)
		for _, req := range route.requests {
			req.path = fmt.Sprintf("/%d/%s", route.number, req.path)
			client.send(req)
			r := req.asEnvoySeesIt()
			var want, got [][]string
			first := plan.Descriptors(r, nil)
			r.response = [][2]string{{"x-cost", "12"}, {"x-cost", "7"}}
			for _, ds := range [][]actions.Descriptor{first, plan.StreamDone(r, nil)} {
				if len(ds) > 0 {
					want = append(want, show(ds))
				}
			}
			for range want {
				if asked := server.next(10 * time.Second); asked != nil {
					got = append(got, showWire(asked))
				}
			}
			for asked := server.next(0); asked != nil; asked = server.next(0) {
				got = append(got, showWire(asked))
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Fatalf("calls of Envoy (-plan +Envoy):\n%s\nrate_limits: %s\nrequest: %s %+q", d, route.rateLimits,
					req.path, req.headers)
			}
			seen["calls"] += len(got)
			seen["requests"]++
		}
	}
	t.Logf("%d routes, %d requests, %d calls", len(drawn), seen["requests"], seen["calls"])
	if seen["calls"] < seen["requests"]/4 {
		t.Errorf("%d requests led to %d calls: the draw rarely makes a descriptor", seen["requests"], seen["calls"])
	}
}

// TestEnvoyRefusesTheSame: what docs/reference/actions.md says that Envoy refuses as well.
func TestEnvoyRefusesTheSame(t *testing.T) {
	proctest.SkipIfShort(t, "Envoy")
	binary, err := launch.FindEnvoy()
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"[{actions: [{source_cluster: {}}], stage: 1}]":                                                    "'stage' field and 'disable_key' field are not supported",
		"[{actions: [{source_cluster: {}}], disable_key: a}]":                                              "'stage' field and 'disable_key' field are not supported",
		"[{actions: [{source_cluster: {}}], hits_addend: {}}]":                                             "hits_addend must contain either a format or a number",
		"[{actions: [{dynamic_metadata: {descriptor_key: a, metadata_key: {key: b, path: [{key: c}]}}}]}]": "Using deprecated option",
		"[{actions: [{source_cluster: {}}], hits_addend: {format: '%REQ(a)%%REQ(b)%'}}]":                   "must contain exactly one substitution",
	} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			if _, err := actions.Parse([]byte(toJSON(t, text))); err == nil {
				t.Error("a plan is made of it")
			}
			file := filepath.Join(t.TempDir(), "envoy.yaml")
			config := envoyConfig(t, "127.0.0.1:1", []*drawnRoute{{rateLimits: toJSON(t, text)}})
			if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := exec.CommandContext(t.Context(), binary, "--mode", "validate", "-c", file).CombinedOutput()
			if err == nil || !strings.Contains(string(out), want) {
				t.Errorf("Envoy: %v, want an error with %s: %s", err, want, out)
			}
		})
	}
}

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
	switch oneOf(t, 0, 0, 0, 1, 2) {
	case 1:
		limit["limit"] = object{"rate_limit": object{
			"requests_per_unit": oneOf(t, 0, 7), "unit": oneOf(t, "SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR"),
		}}
	case 2:
		limit["limit"] = object{"dynamic_metadata": object{"metadata_key": object{
			"key": "set", "path": []object{{"key": oneOf(t, "limit", "bad", "odd", "text", "none")}},
		}}}
	}
	if !ofRoute && rapid.Bool().Draw(t, "hits_addend") {
		hits := object{}
		if rapid.Bool().Draw(t, "number") {
			hits["number"] = oneOf(t, 0, 1, 1000000000)
		} else {
			hits["format"] = oneOf(t, "%RESP(X-Cost)%", "%RESP(x-none?x-cost):1%", "%RESP(x-none)%", "%REQ(x-cost)%", "%REQ(X-Cost?x-a)%", "%REQ(x-cost):2%", "%REQUEST_HEADER(x-cost)%",
				"%DYNAMIC_METADATA(set:cost)%", "%DYNAMIC_METADATA(set:text)%", "%DYNAMIC_METADATA(set:nested:cost)%",
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
	switch rapid.IntRange(1, 11).Draw(t, "action") {
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
	case 10:
		a["descriptor_value"] = oneOf(t, "near", "%REQ(x-a)%", "%REQ(x-a?x-b):1%", "a-%REQ(x-miss)%", "100%%",
			"%REQ(:method)%%REQ(host)%")
		maybe(t, a, "descriptor_key", "ak")
		maybe(t, a, "default_value", "else")
		ranges := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) object {
			r := object{"address_prefix": oneOf(t, "10.1.2.3", "127.0.0.1", "0.0.0.0", "2001:db8::1", "::", "::ffff:10.1.2.3")}
			maybe(t, r, "prefix_len", oneOf(t, 0, 8, 16, 32, 64, 120, 128))
			return r
		}), 0, 2)
		matcher := object{"ranges": ranges.Draw(t, "ranges")}
		maybe(t, matcher, "invert_match", true)
		a["address_matcher"] = matcher
		return object{"remote_address_match": a}
	default:
		a["descriptor_key"] = "md"
		ns := oneOf(t, "set", "route", "hdr")
		path := []object{{"key": oneOf(t, "text", "empty", "n", "none", "m")}}
		if oneOf(t, 0, 0, 1) == 1 {
			path = []object{{"key": "nested"}, {"key": oneOf(t, "text", "none", "n")}}
		}
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
	switch rapid.IntRange(0, 9).Draw(t, "match") {
	case 0:
	case 1:
		m["present_match"] = rapid.Bool().Draw(t, "present_match")
	case 2:
		m["range_match"] = object{"start": oneOf(t, -5, 0, 7), "end": oneOf(t, 0, 7, 100)}
	case 3:
		m["exact_match"] = oneOf(t, "", "a")
	case 4:
		m["prefix_match"] = "a"
	case 5:
		m["suffix_match"] = "b"
	case 6:
		m["contains_match"] = "a"
	case 7:
		m["safe_regex_match"] = object{"regex": oneOf(t, regexes...)}
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

// metadata is what each route has as its own, and what a filter sets on each request.
const metadata = `{"text": "t", "empty": "", "n": 5, "cost": 4, "nested": {"text": "d", "n": 1, "cost": "12"},
	"limit": {"requests_per_unit": 42, "unit": "HOUR"},
	"bad": {"requests_per_unit": "1", "unit": "HOUR"}, "odd": {"requests_per_unit": 3, "unit": "WEEK"}}`

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
			req.metadata["hdr.m"] = actions.MetadataValue{Kind: actions.MetadataText, Text: []byte(h[1])}
		case "x-mn":
			n, err := strconv.ParseFloat(h[1], 64)
			if err == nil {
				req.metadata["hdr.n"] = actions.MetadataValue{Kind: actions.MetadataNumber, Number: n}
			}
		}
		req.headers = append(req.headers, h)
	}
	var values map[string]any
	if err := json.Unmarshal([]byte(metadata), &values); err != nil {
		return nil
	}
	for _, prefix := range []string{"set.", "route:route."} {
		flatten(prefix, values, req.metadata)
	}
	return req
}

func flatten(prefix string, values map[string]any, into map[string]actions.MetadataValue) {
	for name, value := range values {
		switch value := value.(type) {
		case string:
			into[prefix+name] = actions.MetadataValue{Kind: actions.MetadataText, Text: []byte(value)}
		case float64:
			into[prefix+name] = actions.MetadataValue{Kind: actions.MetadataNumber, Number: value}
		case map[string]any:
			flatten(prefix+name+".", value, into)
		}
	}
}

func envoyConfig(t *testing.T, server string, drawn []*drawnRoute) string {
	t.Helper()
	var routes []any
	for _, d := range drawn {
		perRoute := object{
			"@type":  "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute",
			"domain": fmt.Sprintf("route %d", d.number),
		}
		to := object{"cluster": "there"}
		if d.ofRoute {
			to["rate_limits"] = json.RawMessage(d.rateLimits)
		} else {
			perRoute["rate_limits"] = json.RawMessage(d.rateLimits)
		}
		routes = append(routes, object{
			"match": object{"prefix": fmt.Sprintf("/%d/", d.number)}, "route": to,
			"metadata":                object{"filter_metadata": object{"route": json.RawMessage(metadata)}},
			"typed_per_filter_config": object{"envoy.filters.http.ratelimit": perRoute},
		})
	}
	text, err := json.Marshal(routes)
	if err != nil {
		t.Fatal(err)
	}
	host, port, err := net.SplitHostPort(server)
	if err != nil {
		t.Fatal(err)
	}
	return strings.NewReplacer("ROUTES", string(text), "METADATA", metadata, "HOST", host, "PORT", port).Replace(`
node: {id: node, cluster: here}
static_resources:
  listeners:
    - name: front
      address: {socket_address: {address: 127.0.0.1, port_value: 0}}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: front
                use_remote_address: true
                xff_num_trusted_hops: 1
                http_filters:
                  - name: envoy.filters.http.set_metadata
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config
                      metadata: [{metadata_namespace: set, value: METADATA}]
                  - name: envoy.filters.http.header_to_metadata
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config
                      request_rules:
                        - {header: x-m, on_header_present: {metadata_namespace: hdr, key: m, type: STRING}}
                        - {header: x-mn, on_header_present: {metadata_namespace: hdr, key: "n", type: NUMBER}}
                  - name: envoy.filters.http.ratelimit
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
                      domain: none
                      failure_mode_deny: true
                      timeout: 20s
                      rate_limit_service:
                        transport_api_version: V3
                        grpc_service: {envoy_grpc: {cluster_name: recorder}}
                  - name: envoy.filters.http.router
                    typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
                route_config: {virtual_hosts: [{name: all, domains: ["*"], routes: ROUTES}]}
    - name: back
      address: {pipe: {path: "@weir-actions-PORT"}}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: back
                http_filters:
                  - name: envoy.filters.http.router
                    typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
                route_config:
                  virtual_hosts:
                    - name: all
                      domains: ["*"]
                      routes: [{match: {prefix: /}, direct_response: {status: 200}}]
                      response_headers_to_add: [{header: {key: x-cost, value: "12"}}, {header: {key: x-cost, value: "7"}}]
  clusters:
    - name: there
      load_assignment:
        cluster_name: there
        endpoints: [{lb_endpoints: [{endpoint: {address: {pipe: {path: "@weir-actions-PORT"}}}}]}]
    - name: recorder
      load_assignment:
        cluster_name: recorder
        endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: HOST, port_value: PORT}}}}]}]
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: {http2_protocol_options: {}}
`)
}

// client sends requests as they are, over one connection.
type client struct {
	t    *testing.T
	conn net.Conn
	r    *bufio.Reader
}

func dial(t *testing.T, addr string) *client {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &client{t, conn, bufio.NewReader(conn)}
}

func (c *client) send(req *drawnRequest) {
	c.t.Helper()
	var b bytes.Buffer
	fmt.Fprintf(&b, "GET %s HTTP/1.1\r\nHost: shop.example\r\n", req.path)
	for _, h := range req.headers {
		fmt.Fprintf(&b, "%s: %s\r\n", h[0], h[1])
	}
	b.WriteString("\r\n")
	if err := c.conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.conn.Write(b.Bytes()); err != nil {
		c.t.Fatal(err)
	}
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		c.t.Fatalf("%q: %v", b.String(), err)
	}
	defer resp.Body.Close() //nolint:errcheck // only read from
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		c.t.Fatalf("%q: %s %s, %v", b.String(), resp.Status, body, err)
	}
}

// recorder is a rate limit service that lets everything pass and keeps what it is asked.
type recorder struct {
	pb.UnimplementedRateLimitServiceServer

	addr  string
	asked chan *pb.RateLimitRequest
}

func newRecorder(t *testing.T) *recorder {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{addr: l.Addr().String(), asked: make(chan *pb.RateLimitRequest, 100)}
	s := grpc.NewServer(grpc.ForceServerCodecV2(repairing{}))
	pb.RegisterRateLimitServiceServer(s, r)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *recorder) ShouldRateLimit(_ context.Context, req *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	r.asked <- req
	return &pb.RateLimitResponse{OverallCode: pb.RateLimitResponse_OK}, nil
}

// next returns the next call, and nil if there is none for so long.
func (r *recorder) next(within time.Duration) *pb.RateLimitRequest {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case req := <-r.asked:
		return req
	default:
	}
	select {
	case req := <-r.asked:
		return req
	case <-timer.C:
		return nil
	}
}

// repairing is a codec for messages with text that is not UTF-8: protobuf reads no such message. It replaces each run
// of such bytes as internal/rls does.
type repairing struct{}

func (repairing) Name() string { return "proto" }

func (repairing) Marshal(v any) (mem.BufferSlice, error) {
	data, err := proto.Marshal(v.(proto.Message)) //nolint:errcheck // gRPC passes messages
	return mem.BufferSlice{mem.SliceBuffer(data)}, err
}

func (repairing) Unmarshal(data mem.BufferSlice, v any) error {
	return proto.Unmarshal(repair(data.Materialize(), 2, 1), v.(proto.Message)) //nolint:errcheck // gRPC passes messages
}

// repair repairs the text in a message, and in the messages in these fields.
func repair(message []byte, below ...protowire.Number) []byte {
	var repaired []byte
	for len(message) > 0 {
		number, kind, size := protowire.ConsumeField(message)
		if size < 0 {
			return append(repaired, message...)
		}
		if kind == protowire.BytesType && (len(below) == 0 || number == below[0]) {
			_, _, tag := protowire.ConsumeTag(message)
			value, _ := protowire.ConsumeBytes(message[tag:])
			if len(below) > 0 {
				value = repair(value, below[1:]...)
			} else {
				value = bytes.ToValidUTF8(value, []byte("?"))
			}
			repaired = protowire.AppendBytes(protowire.AppendTag(repaired, number, kind), value)
		} else {
			repaired = append(repaired, message[:size]...)
		}
		message = message[size:]
	}
	return repaired
}

// showWire is show of what Envoy sent.
func showWire(req *pb.RateLimitRequest) []string {
	var ds []actions.Descriptor
	for _, w := range req.GetDescriptors() {
		var d actions.Descriptor
		for _, e := range w.GetEntries() {
			d.Entries = append(d.Entries, entry(e.GetKey(), e.GetValue()))
		}
		if w.GetHitsAddend() != nil {
			d.HasHitsAddend = true
			if d.HitsAddend = int64(w.GetHitsAddend().GetValue()); w.GetIsNegativeHits() {
				d.HitsAddend = -d.HitsAddend
			}
		}
		if l := w.GetLimit(); l != nil {
			d.Limit.Requests = l.GetRequestsPerUnit()
			d.Limit.Window = windows[slices.Index(unitNames, l.GetUnit().String())]
		}
		ds = append(ds, d)
	}
	return show(ds)
}

var (
	unitNames = []string{"SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR"}
	windows   = []time.Duration{
		time.Second, time.Minute, time.Hour, 24 * time.Hour, 30 * 24 * time.Hour, 365 * 24 * time.Hour,
	}
)
