package metrics

import (
	"testing"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
)

// Labels have keys and values as the rule file has them, whatever a rule's path puts before special characters.
func TestClassicLabels(t *testing.T) {
	set := casetest.Compile(t, `
domain: shop
descriptors:
  - {key: my key, value: v, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: x=y, value: z, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: plan, value: free > paid, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: 'back\slash', rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: a, value: '1.2.3.4:5', descriptors: [{key: b = c, value: d=e, rate_limit: {unit: minute, requests_per_unit: 1}}]}
  - {key: net, cidr: [10.0.0.0/8], rate_limit: {unit: minute, requests_per_unit: 1}}
`)
	want := [][2]string{
		{"my key_v", ""},
		{"x=y_z", ""},
		{"plan_free > paid", ""},
		{`back\slash`, ""},
		{"a_1_2_3_4_5", "b = c_d=e"},
		{"net cidr 10_0_0_0/8", ""},
	}
	for i, l := range set.Limits() {
		c := limitCounters{LimitName: adminapi.LimitName{Domain: "shop", Rule: l.Rule.Path}}
		if got := c.classicKey(); got != [3]string{"shop", want[i][0], want[i][1]} {
			t.Errorf("%s: %q, want %q", l.Rule.Path, got, want[i])
		}
	}
}
