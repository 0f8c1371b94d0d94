package docs

import (
	"os"
	"strings"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
)

// TestActionsTable: every action of Envoy's rate_limits, and every other field of an entry, has a row.
func TestActionsTable(t *testing.T) {
	const page = "reference/actions.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if first, _, ok := strings.Cut(strings.TrimPrefix(line, "| "), " |"); ok && strings.HasPrefix(line, "| `") {
			for name := range strings.SplitSeq(first, ", ") {
				rows[strings.Trim(name, "`")] = true
			}
		}
	}
	fields := (&routev3.RateLimit_Action{}).ProtoReflect().Descriptor().Fields()
	others := (&routev3.RateLimit{}).ProtoReflect().Descriptor().Fields()
	want := map[string]bool{}
	for i := range fields.Len() {
		want[fields.Get(i).TextName()] = true
	}
	for i := range others.Len() {
		if name := others.Get(i).TextName(); name != "actions" {
			want[name] = true
		}
	}
	for name := range want {
		if !rows[name] {
			t.Errorf("%s: no row for %s", page, name)
		}
	}
	for name := range rows {
		if !want[name] {
			t.Errorf("%s: Envoy has no %s", page, name)
		}
	}
}
