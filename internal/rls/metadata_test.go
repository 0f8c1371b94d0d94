package rls

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/structpb"

	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
)

const metadataRules = `
domain: shop
descriptors:
  - key: east
    quota_mode: true
    rate_limit: {name: east, unit: minute, requests_per_unit: 1}
    metadata: {backend: east, limits: {tokens: 10, region: e}, tags: [a, b]}
  - key: west
    quota_mode: true
    rate_limit: {name: west, unit: minute, requests_per_unit: 9}
    metadata: {backend: west, limits: {tokens: 20, cost: 0.5}}
  - {key: plain, rate_limit: {name: plain, unit: minute, requests_per_unit: 1}}
  - key: trial
    shadow_mode: true
    rate_limit: {name: trial, unit: minute, requests_per_unit: 1}
    metadata: {trial: true}
`

func TestDynamicMetadata(t *testing.T) {
	type ds = []*commonpb.RateLimitDescriptor
	s, _ := service(t, metadataRules)
	steps := []struct {
		name  string
		ask   ds
		addnd uint32
		want  string // JSON; "" for none
	}{
		{"no rule has metadata", ds{descriptor("plain=a"), descriptor("nobody=knows")}, 0, ""},
		{
			"merged, the first wins",
			ds{descriptor("east=a", "x=y"), descriptor("east=a"), costing(2, descriptor("west=a"))},
			1,
			`{
			"domain": "shop", "hitsAddend": 1, "quotaModeEnabled": true,
			"metadata": {"backend": "east", "limits": {"tokens": 10, "region": "e", "cost": 0.5}, "tags": ["a", "b"]}
		}`,
		},
		{"only what is OK", ds{descriptor("east=a"), descriptor("west=a")}, 0, `{
			"domain": "shop", "quotaModeEnabled": true, "quotaModeViolations": [0],
			"metadata": {"backend": "west", "limits": {"tokens": 20, "cost": 0.5}},
			"violations": [{"descriptor": 0, "rule": "east", "limit": "east", "mode": "quota",
				"metadata": {"backend": "east", "limits": {"tokens": 10, "region": "e"}, "tags": ["a", "b"]}}]
		}`},
		{"what denied has none", ds{descriptor("trial=a"), descriptor("plain=a")}, 0, `{
			"domain": "shop", "quotaModeEnabled": false,
			"metadata": {"trial": true},
			"violations": [{"descriptor": 1, "rule": "plain", "limit": "plain", "mode": "enforce"}]
		}`},
		{"shadow stays OK", ds{descriptor("trial=a")}, 0, `{
			"domain": "shop", "quotaModeEnabled": false,
			"metadata": {"trial": true},
			"violations": [{"descriptor": 0, "rule": "trial", "limit": "trial", "mode": "shadow", "metadata": {"trial": true}}]
		}`},
	}
	for _, st := range steps {
		t.Run(st.name, func(t *testing.T) {
			req := request(st.ask...)
			req.HitsAddend = st.addnd
			checkMetadata(t, ask(t, s, req).GetDynamicMetadata(), st.want)
		})
	}
}

func TestDynamicMetadataWhereItIsAskedFor(t *testing.T) {
	s, _ := service(t, metadataRules, func(o *options) { o.DynamicMetadata = true })
	checkMetadata(t, ask(t, s, request(descriptor("plain=a"))).GetDynamicMetadata(),
		`{"domain": "shop", "quotaModeEnabled": false, "descriptors": [{"entries": ["plain=a"]}]}`)
	checkMetadata(
		t,
		ask(t, s, request(descriptor("east=a", "x=y"), costing(2, descriptor("plain=b")))).GetDynamicMetadata(),
		`{"domain": "shop", "quotaModeEnabled": false,
			"descriptors": [{"entries": ["east=a", "x=y"]}, {"entries": ["plain=b"], "hitsAddend": 2}],
			"violations": [{"descriptor": 1, "rule": "plain", "limit": "plain", "mode": "enforce"}]}`,
	)
	req := request(descriptor("plain=a"))
	req.Domain = "unknown"
	checkMetadata(t, ask(t, s, req).GetDynamicMetadata(),
		`{"domain": "unknown", "quotaModeEnabled": false, "descriptors": [{"entries": ["plain=a"]}]}`)
}

func checkMetadata(t *testing.T, got *structpb.Struct, want string) {
	t.Helper()
	if want == "" {
		if got != nil {
			t.Errorf("got %v, want none", got)
		}
		return
	}
	expected := &structpb.Struct{}
	if err := protojson.Unmarshal([]byte(want), expected); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(expected, got, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
