package main

import (
	"math"
	"strings"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"
)

// fewKeys makes the workloads of a test small: under the race detector a million requests take a minute to encode.
func fewKeys(t *testing.T) {
	t.Helper()
	const few = 20_000
	for i := range workloads {
		if w := &workloads[i]; w.keys > few {
			keys := w.keys
			w.keys, w.encoded = few, nil
			t.Cleanup(func() { w.keys, w.encoded = keys, nil })
		}
	}
}

// TestDeniedShare draws keys as a run does, and counts those that are over their limit.
func TestDeniedShare(t *testing.T) {
	for i := range workloads {
		w := &workloads[i]
		want := w.deniedShare()
		const draws = 200_000
		denied := 0
		for next, n := w.picker(1), 0; n < draws; n++ {
			if w.isTight(next()) {
				denied++
			}
		}
		if got := float64(denied) / draws; math.Abs(got-want) > 0.004 {
			t.Errorf("%s: %.4f of the keys drawn are denied, %.4f expected", w.name, got, want)
		}
	}
	w4, err := workloadNamed("w4")
	if err != nil {
		t.Fatal(err)
	}
	if got := w4.deniedShare(); got < 0.095 || got > 0.105 {
		t.Errorf("w4 denies %.4f, want about 0.1", got)
	}
	if got := len(w4.tightKeys()); got != 50_000 {
		t.Errorf("w4 has %d tight keys, want 50,000", got)
	}
}

func TestRequestsAreThoseOfTheirKeys(t *testing.T) {
	fewKeys(t)
	for i := range workloads {
		w := &workloads[i]
		r, err := w.encode()
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range []int{0, 1, 49, w.keys - 1} {
			var got pb.RateLimitRequest
			if err := proto.Unmarshal(r.at(k), &got); err != nil {
				t.Fatal(err)
			}
			if want := w.request(k); !proto.Equal(&got, want) {
				t.Errorf("%s, key %d: request %v, want %v", w.name, k, &got, want)
			}
		}
	}
}

func TestRuleFiles(t *testing.T) {
	w := workload{name: "w", keys: 4, descriptors: 2, rules: 2, tight: []int{1}}
	want := `domain: w
descriptors:
  - key: d0_0
    rate_limit: {requests_per_unit: 1000000000, unit: hour, algorithm: funnel}
  - key: d0_1
    rate_limit: {requests_per_unit: 1, unit: year, algorithm: funnel}
  - key: d1_0
    rate_limit: {requests_per_unit: 1000000000, unit: hour, algorithm: funnel}
  - key: d1_1
    rate_limit: {requests_per_unit: 1, unit: year, algorithm: funnel}
`
	if got := w.ruleFile("algorithm: funnel"); got != want {
		t.Errorf("rule file:\n%s\nwant:\n%s", got, want)
	}
	if got := w.ruleFile(""); strings.Contains(got, "algorithm") {
		t.Errorf("a file for envoyproxy/ratelimit with fields that it does not know:\n%s", got)
	}
}

func TestScenarios(t *testing.T) {
	for name, want := range map[string]scenario{
		"w3":    {w: &workloads[2], shape: closedLoop},
		"w1c1":  {w: &workloads[0], shape: oneByOne},
		"w5":    {w: &workloads[0], shape: openLoop},
		"hotc1": {w: &workloads[3], shape: oneByOne},
	} {
		want.name = name
		if got, err := parseScenario(name); err != nil || got != want {
			t.Errorf("%s is %+v, %v; want %+v", name, got, err, want)
		}
	}
	for _, name := range []string{"w6", "w5c1", ""} {
		if _, err := parseScenario(name); err == nil || !strings.Contains(err.Error(), "no workload") {
			t.Errorf("%q: error %v, want none such", name, err)
		}
	}
}
