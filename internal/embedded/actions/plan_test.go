package actions_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/internal/embedded/actions"
)

// TestPlanNamesWhatItReads: who calls Descriptors can find out before what a request must have.
func TestPlanNamesWhatItReads(t *testing.T) {
	p := mustParse(t, `
- actions:
  - request_headers: {header_name: X-User, descriptor_key: user}
  - header_value_match: {descriptor_value: a, headers: [{name: x-user}, {name: Host}]}
  - query_parameters: {query_parameter_name: q, descriptor_key: q}
  - metadata: {descriptor_key: m, source: ROUTE_ENTRY, metadata_key: {key: ns, path: [{key: a}]}}
  hits_addend: {format: "%REQ(x-cost?x-size)%"}
- actions: [{remote_address: {}}]
- actions: [{source_cluster: {}}]
  apply_on_stream_done: true
  hits_addend: {format: "%DYNAMIC_METADATA(envoy.filters.http.ratelimit:leased)%"}
- actions: [{generic_key: {descriptor_value: a}}]
  apply_on_stream_done: true
  hits_addend: {format: "%DYNAMIC_METADATA(envoy.filters.http.ratelimit:leased)%"}
- actions: [{generic_key: {descriptor_value: a}}]
  apply_on_stream_done: true
  hits_addend: {format: "%RESP(X-Cost)%"}`)
	first, done := p.OnRequest(), p.OnStreamDone()
	if d := cmp.Diff([]string{"x-user", ":authority", ":path", "x-cost", "x-size"}, first.Headers); d != "" {
		t.Errorf("headers (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]*actions.MetadataKey{
		{Source: actions.RouteMetadata, Namespace: "ns", Key: "a"},
	}, first.Metadata); d != "" {
		t.Errorf("metadata (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]*actions.MetadataKey{
		{Namespace: "envoy.filters.http.ratelimit", Key: "leased", MayBeNumber: true},
	}, done.Metadata); d != "" {
		t.Errorf("metadata of the stream's end (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{"x-cost"}, done.ResponseHeaders); d != "" || done.Headers != nil || first.ResponseHeaders != nil {
		t.Errorf("headers of the stream's end (-want +got):\n%s", d)
	}
	if !first.RemoteAddress || first.SourceCluster || !done.SourceCluster ||
		first.DestinationCluster || done.IsEmpty() {
		t.Error("what is read is of the wrong phase")
	}
}

// TestClientWithoutAddress: a client on a Unix socket has none, and Envoy makes no descriptor of it.
func TestClientWithoutAddress(t *testing.T) {
	p := mustParse(t, `
- actions: [{remote_address: {}}]
- actions: [{masked_remote_address: {}}]`)
	if got := show((&request{}).descriptors(p)); got != nil {
		t.Errorf("descriptors %q, want none", got)
	}
}

// TestReusedMemory: what an earlier request left behind does not show.
func TestReusedMemory(t *testing.T) {
	p := mustParse(t, `
- actions: [{source_cluster: {}}, {request_headers: {header_name: a, descriptor_key: a, skip_if_absent: true}}]
  hits_addend: {number: 7}
- actions: [{request_headers: {header_name: a, descriptor_key: a}}]
  limit: {rate_limit: {requests_per_unit: 5, unit: DAY}}
- actions: [{destination_cluster: {}}]`)
	full := &request{headers: [][2]string{{"a", "1"}}}
	var out []actions.Descriptor
	for range 2 {
		for _, tt := range []struct {
			req  *request
			want []string
		}{
			{full, []string{"source_cluster=here,a=1 hits=7", "a=1 limit=5/24h0m0s", "destination_cluster=there"}},
			{&request{}, []string{"source_cluster=here hits=7", "destination_cluster=there"}},
		} {
			out = p.OnRequest().Descriptors(tt.req.of(p), out[:0])
			if d := cmp.Diff(tt.want, show(out)); d != "" {
				t.Errorf("descriptors (-want +got):\n%s", d)
			}
		}
	}
	out = p.OnRequest().Descriptors(full.of(p), (&request{}).descriptors(p))
	if len(out) != 5 || out[0].Cost(1) != 7 || out[4].Cost(2) != 2 {
		t.Errorf("appended: %q, costs %d and %d", show(out), out[0].Cost(1), out[4].Cost(2))
	}
}
