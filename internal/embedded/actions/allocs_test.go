package actions_test

import "testing"

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

// TestAllocations: with reused memory a request allocates its values and nothing else.
func TestAllocations(t *testing.T) {
	req := &request{addr: "192.168.7.9", headers: [][2]string{
		{"x-user", "user-1234567890"}, {":path", "/search?page=7&q=shoes&sort=price"}, {"x-cost", "3"},
	}}
	for _, tt := range plans {
		p := mustParse(t, tt.rateLimits)
		r, out := req.of(p), req.descriptors(p)
		got := testing.AllocsPerRun(100, func() { out = p.OnRequest().Descriptors(r, out[:0]) })
		if got > tt.allocations {
			t.Errorf("%s: %v allocations, want at most %v", tt.name, got, tt.allocations)
		}
	}
}
