package actions_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/embedded/actions"
)

// request is a request by hand.
type request struct {
	headers  [][2]string
	response [][2]string // headers
	addr     string
	metadata map[string]actions.MetadataValue // by namespace, and keys, joined by dots; those of routes begin with route:
}

// of is the request as the plan reads it.
func (r *request) of(p *actions.Plan) *actions.Request {
	req := &actions.Request{SourceCluster: "here"}
	req.SetDestinationCluster([]byte("there"))
	if addr, err := netip.ParseAddr(r.addr); err == nil { // else a client without one
		req.SetRemote(netip.AddrPortFrom(addr, 1).String())
	}
	for _, h := range r.headers {
		req.AddHeader(h[0], []byte(h[1]))
	}
	for _, h := range r.response {
		req.AddResponseHeader(h[0], []byte(h[1]))
	}
	for _, key := range slices.Concat(p.OnRequest().Metadata, p.OnStreamDone().Metadata) {
		name := key.Namespace + "." + key.Key
		if key.Source == actions.RouteMetadata {
			name = "route:" + name
		}
		if v, ok := r.metadata[name]; ok {
			req.AddMetadata(key, v)
		}
	}
	return req
}

// descriptors are those that the plan makes when the request arrives.
func (r *request) descriptors(p *actions.Plan) []actions.Descriptor {
	return p.OnRequest().Descriptors(r.of(p), nil)
}

// toJSON is YAML as JSON, since Envoy's own YAML is an older one.
func toJSON(tb testing.TB, text string) string {
	tb.Helper()
	if json.Valid([]byte(text)) {
		return text
	}
	var value any
	if err := yaml.Unmarshal([]byte(text), &value); err != nil {
		tb.Fatal(err)
	}
	data, err := json.Marshal(value)
	if err != nil {
		tb.Fatal(err)
	}
	return string(data)
}

// parse makes a plan of rate_limits in JSON.
func parse(text []byte) (*actions.Plan, error) {
	route := &ratelimitv3.RateLimitPerRoute{}
	if err := protojson.Unmarshal(fmt.Appendf(nil, `{"rate_limits": %s}`, text), route); err != nil {
		return nil, err
	}
	return actions.New(route)
}

// mustParse parses what must be right, in YAML or JSON.
func mustParse(tb testing.TB, text string) *actions.Plan {
	tb.Helper()
	p, err := parse([]byte(toJSON(tb, text)))
	if err != nil {
		tb.Fatalf("%v\n%s", err, text)
	}
	return p
}

// show is descriptors as text: entries, then what else they have.
func show(ds []actions.Descriptor) []string {
	var all []string
	for _, d := range ds {
		s := descriptors.FormatEntries(d.Entries)
		if d.HasHitsAddend {
			s += " hits=" + strconv.FormatInt(d.HitsAddend, 10)
		}
		if d.Limit != (decide.OwnLimit{}) {
			s += " limit=" + strconv.FormatInt(int64(d.Limit.Requests), 10) + "/" + d.Limit.Window.String()
		}
		all = append(all, s)
	}
	return all
}

// A cost is a number from 0 to the largest that Envoy takes, as C reads one.
func TestCosts(t *testing.T) {
	p := mustParse(t, `[{actions: [{source_cluster: {}}], hits_addend: {format: "%REQ(x-cost)%"}}]`)
	for text, want := range map[string]int64{
		"1000000000": 1e9, "1000000001": -1, "-1": -1, "-0": 0, "1.9": 1, "1e3": 1000, "0x10": 16, "1_0": -1, "nan": -1,
		" 7\t":  7, //nolint:gocritic // the spaces are the case
		"1e999": -1, "": -1, "seven": -1,
	} {
		got := int64(-1)
		if d := (&request{headers: [][2]string{{"x-cost", text}}}).descriptors(p); len(d) == 1 {
			got = d[0].HitsAddend
		}
		if got != want {
			t.Errorf("%q is %d, want %d", text, got, want)
		}
	}
}

func entry(key, value string) descriptors.Entry { return descriptors.Entry{Key: key, Value: value} }
