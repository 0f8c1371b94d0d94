package actions_test

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/weir-ratelimit/weir/internal/embedded/actions"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
)

// requestOnly is for a Request that has no response and no metadata.
type requestOnly struct{}

func (requestOnly) ResponseHeader(string) (value []byte, ok bool) { return nil, false }

func (requestOnly) Metadata(*actions.MetadataKey) actions.MetadataValue {
	return actions.MetadataValue{}
}

// search is a request for /search?q=shoes of the user ann.
type search struct{ requestOnly }

func (search) Header(name string, n int) (value []byte, ok bool) {
	headers := map[string][]string{":path": {"/search?q=shoes"}, "x-user": {"ann"}}
	if values := headers[name]; n < len(values) {
		return []byte(values[n]), true
	}
	return nil, false
}

func (search) RemoteAddress() netip.Addr { return netip.MustParseAddr("10.1.2.3") }

func (search) SourceCluster() string { return "front" }

func (search) DestinationCluster() (name []byte, ok bool) { return []byte("shop"), true }

func Example() {
	plan, err := actions.Parse([]byte(`[
		{"actions": [
			{"request_headers": {"header_name": "x-user", "descriptor_key": "user"}},
			{"query_parameters": {"query_parameter_name": "q", "descriptor_key": "query"}}
		]},
		{"actions": [{"masked_remote_address": {"v4_prefix_mask_len": 16}}], "hits_addend": {"number": 2}},
		{"actions": [{"request_headers": {"header_name": "x-api-key", "descriptor_key": "key"}}]}
	]`))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("reads", plan.OnRequest().Headers())
	for _, d := range plan.Descriptors(search{}, nil) { // the third has no value, so there is no descriptor
		fmt.Println(descriptors.FormatEntries(d.Entries), "costs", d.Cost(1))
	}
	// Output:
	// reads [x-user :path x-api-key]
	// user=ann,query=shoes costs 1
	// masked_remote_address=10.1.0.0/16 costs 2
}

func ExampleParse_error() {
	_, err := actions.Parse([]byte(`[{"actions": [{"remote_address": {}}, {"query_parameters": {"name": "q"}}]}]`))
	where, what, _ := strings.Cut(err.Error(), ": ")
	fmt.Println(where)
	fmt.Println(what)
	// Output:
	// rate_limits[0].actions[1].query_parameters.name
	// Envoy has no such field; the fields here are query_parameter_name, descriptor_key, skip_if_absent
}
