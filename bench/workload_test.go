package main

import "testing"

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
