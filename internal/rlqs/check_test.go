package rlqs

import (
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
)

func TestCheck(t *testing.T) {
	errs, warnings := Check(casetest.Compile(t, `
domain: shop
descriptors:
- {key: a, rate_limit: {unit: second, requests_per_unit: 10}}
- {key: b, rate_limit: {unit: minute, requests_per_unit: 100}}
- {key: c, rate_limit: {unit: second, requests_per_unit: 0}}
- {key: d, rate_limit: {algorithm: concurrency, requests_per_unit: 50}}
- {key: h, rate_limit: {unit: day, requests_per_unit: 100000}}
- {key: j, rate_limit: {algorithm: sliding_window, unit: second, requests_per_unit: 50}}
- {key: k, rate_limit: {unit: second, requests_per_unit: 1000, reservation: {estimate: 100}}}
- {key: i, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 5}}
`))
	compare(t, errs, "", []string{
		"rules.yaml:7:1: d (rules.yaml:7): algorithm: concurrency cannot be charged in advance",
		"rules.yaml:9:1: j (rules.yaml:9): algorithm: a sliding_window of 1s is too short to be charged in advance, it must be at least",
		"rules.yaml:10:1: k (rules.yaml:10): reservation: the real cost of a request is unknown when Weir charges in advance",
	})
	compare(t, warnings, descriptors.WarnQuota, []string{
		"rules.yaml:5:1: b: 100 per 1m is too small to divide among Envoys",
		"rules.yaml:8:1: h: 100000 per 1d is too small to divide among Envoys",
	})
}

func compare(t *testing.T, got descriptors.Errors, code string, want []string) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%d findings, want %d:\n%v", len(got), len(want), got)
		return
	}
	for i, e := range got {
		if !strings.HasPrefix(e.Error(), want[i]) || e.Code != code {
			t.Errorf("%s (%s)\nwant %s (%s)", e, e.Code, want[i], code)
		}
	}
}
