package main

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/internal/decide"
)

// docs/reference/metrics.md shows what is registered.
func TestDocument(t *testing.T) {
	const path = "../../docs/reference/metrics.md"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want, err := document(string(text))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(text), want); diff != "" {
		t.Errorf("docs/reference/metrics.md is not what make docs writes (-is +would be):\n%s", diff)
	}
	for _, o := range decide.Outcomes() {
		if !strings.Contains(string(text), "`"+o.String()+"`") {
			t.Errorf("docs/reference/metrics.md does not say what %s is", o)
		}
	}
}
