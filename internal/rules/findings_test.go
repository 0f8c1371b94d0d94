package rules

import (
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

// In a line with tabs and wide characters, the caret is below the error.
func TestCaret(t *testing.T) {
	for _, tt := range []struct {
		source string
		column int
		want   string
	}{
		{"\tä: ö", 5, "  7 | \tä: ö\n    | \t   ^\n"},
		{"short", 99, "  7 | short\n    |      ^\n"},
		{"", 1, ""},
	} {
		var b strings.Builder
		p := Problem{File: "f", Line: 7, Column: tt.column, Severity: "error", Message: "m", Source: tt.source}
		p.Text(&b)
		if _, got, _ := strings.Cut(b.String(), "\n"); got != tt.want {
			t.Errorf("column %d of %.20s:\n%swant\n%s", tt.column, tt.source, got, tt.want)
		}
	}
}

// A line of many megabytes with very many errors does not cause an even larger output.
func TestFindingsAreBounded(t *testing.T) {
	text := "domain: a\ndescriptors: [" + strings.Repeat("{kay: ääääääää}, ", 30_000) + "]\n"
	f, err := Check(descriptors.Process{}, []reload.File{{Name: "rules.yaml", Data: []byte(text)}})
	if err != nil || f.Errors != 30_000 || len(f.Problems) != 1001 {
		t.Fatalf("%d errors, %d problems, error %v", f.Errors, len(f.Problems), err)
	}
	for format, write := range map[string]func(w io.Writer) error{
		"text": func(w io.Writer) error {
			for i := range f.Problems {
				f.Problems[i].Text(w)
			}
			return nil
		},
		"json":   func(w io.Writer) error { return json.NewEncoder(w).Encode(f) },
		"github": func(w io.Writer) error { f.GitHub(w); return nil },
	} {
		var out strings.Builder
		if err := write(&out); err != nil {
			t.Fatal(err)
		}
		if out.Len() > 4<<20 {
			t.Errorf("%s has %d bytes", format, out.Len())
		}
		if want := "and 29000 more"; !strings.Contains(out.String(), want) {
			t.Errorf("%s does not say %q", format, want)
		}
	}
}
