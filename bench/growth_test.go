package main

import (
	"strings"
	"testing"
)

func TestTopKeysRatio(t *testing.T) {
	rounds := func(server ...float64) (r row) {
		for _, s := range server {
			r.Rounds = append(r.Rounds, sample{Server: s})
		}
		return r
	}
	got := topKeysRatio([]row{rounds(10, 20, 40), rounds(9, 16, 33), rounds(8, 15, 25)})
	if got != 0.1 {
		t.Errorf("%v; want 0.1, the median of 1/10, 1/20 and 8/40", got)
	}
}

func TestItem(t *testing.T) {
	word := strings.Repeat("x", 48)
	for text, want := range map[string]string{
		"one":                          "- one\n",
		word + " " + word:              "- " + word + " " + word + "\n",
		word + " " + word + "yy":       "- " + word + "\n  " + word + "yy\n",
		strings.Repeat("z", 120):       "- " + strings.Repeat("z", 120) + "\n",
		"a " + word + " b\n c " + word: "- a " + word + " b c\n  " + word + "\n",
	} {
		if got := item(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
