package main

import (
	"math"
	"testing"
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
