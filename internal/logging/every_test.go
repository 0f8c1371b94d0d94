package logging

import (
	"testing"
	"time"
)

// Every allows one line in the interval, and counts those that it did not.
func TestEvery(t *testing.T) {
	e := Every{Interval: 10 * time.Second}
	now := time.Now()
	for _, step := range []struct {
		after   time.Duration
		skipped uint64
		ok      bool
	}{{0, 0, true}, {time.Second, 0, false}, {time.Second, 0, false}, {e.Interval, 2, true}, {e.Interval, 0, true}} {
		now = now.Add(step.after)
		if skipped, ok := e.Allow(now); skipped != step.skipped || ok != step.ok {
			t.Errorf("after %s: %d, %t; want %d, %t", step.after, skipped, ok, step.skipped, step.ok)
		}
	}
}

// A text is cut off between characters.
func TestShorten(t *testing.T) {
	for text, want := range map[string]string{"abc": "abc", "abcd": "abc...", "ab\u00e9": "ab..."} {
		if got := Shorten(text, 3); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
}
