package actions_test

import (
	"net/netip"
	"testing"

	"github.com/weir-ratelimit/weir/internal/embedded/actions"
)

// fast is a request whose own methods allocate nothing.
type fast struct {
	headers map[string][]byte
	addr    netip.Addr
	cluster []byte
}

func (r *fast) Header(name string, n int) ([]byte, bool) {
	value, ok := r.headers[name]
	return value, ok && n == 0
}

func (r *fast) ResponseHeader(string) ([]byte, bool) { return nil, false }

func (r *fast) Metadata(*actions.MetadataKey) actions.MetadataValue { return actions.MetadataValue{} }

func (r *fast) RemoteAddress() netip.Addr { return r.addr }

func (r *fast) SourceCluster() string { return "here" }

func (r *fast) DestinationCluster() ([]byte, bool) { return r.cluster, true }

var plans = []struct {
	name, rateLimits string
	allocations      float64 // the values alone
}{
	{"constant", `[{actions: [{generic_key: {descriptor_value: a}}, {source_cluster: {}}]}]`, 0},
	{"header", `[{actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]}]`, 1},
	{"match", `[{actions: [{header_value_match: {descriptor_value: a, headers: [{name: x-user, string_match: {prefix: "user-"}}]}}]}]`, 0},
	{"no match", `[{actions: [{header_value_match: {descriptor_value: a, headers: [{name: x-user, string_match: {contains: NO, ignore_case: true}}]}}]}]`, 0},
	{"regex", `[{actions: [{header_value_match: {descriptor_value: a, headers: [{name: x-user, string_match: {safe_regex: {regex: "user-[0-9]+"}}}]}}]}]`, 0},
	{"address", `[{actions: [{remote_address: {}}]}]`, 1},
	{"network", `[{actions: [{masked_remote_address: {v4_prefix_mask_len: 24}}]}]`, 1},
	{"query", `[{actions: [{query_parameters: {query_parameter_name: q, descriptor_key: q}}]}]`, 1},
	{"query match", `[{actions: [{query_parameter_value_match: {descriptor_value: a, query_parameters: [{name: q, string_match: {exact: shoes}}]}}]}]`, 0},
	{"three", `
- actions: [{generic_key: {descriptor_value: all}}]
- actions: [{remote_address: {}}]
- actions: [{request_headers: {header_name: x-user, descriptor_key: user}}, {request_headers: {header_name: ":path", descriptor_key: path}}]
  hits_addend: {format: "%REQ(x-cost)%"}`, 3},
}

func newFast() *fast {
	return &fast{
		headers: map[string][]byte{
			"x-user": []byte("user-1234567890"), ":path": []byte("/search?page=7&q=shoes&sort=price"), "x-cost": []byte("3"),
		},
		addr: netip.MustParseAddr("192.168.7.9"), cluster: []byte("there"),
	}
}

// TestAllocations: with reused memory a request allocates its values and nothing else.
func TestAllocations(t *testing.T) {
	req := newFast()
	for _, tt := range plans {
		p := mustParse(t, tt.rateLimits)
		out := p.Descriptors(req, nil)
		got := testing.AllocsPerRun(100, func() { out = p.Descriptors(req, out[:0]) })
		if got > tt.allocations {
			t.Errorf("%s: %v allocations, want at most %v", tt.name, got, tt.allocations)
		}
	}
}
