package rules

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

// TestSARIF checks what the schema of SARIF 2.1.0 requires of what is written: its own check of these documents is by
// hand, see docs/adr/0027-explain.md.
func TestSARIF(t *testing.T) {
	f, err := Check(descriptors.Process{}, []reload.File{{Name: "my rules/ü.yaml", Data: []byte("domain: a\ndescriptors: [{kay: b}, {}, []]\n")}},
		nil)
	if err != nil || f.Errors != 3 {
		t.Fatalf("%d errors, error %v", f.Errors, err)
	}
	data, err := json.Marshal(f.SARIF("v1"))
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Schema  string `json:"$schema"`
		Version string
		Runs    []struct {
			Tool struct {
				Driver struct {
					Name  string
					Rules []struct {
						ID                   string
						ShortDescription     struct{ Text string }
						DefaultConfiguration struct{ Level string }
					}
				}
			}
			ColumnKind string
			Results    []struct {
				RuleID, Level string
				Message       struct{ Text string }
				Locations     []struct {
					PhysicalLocation struct {
						ArtifactLocation struct{ URI string }
						Region           struct{ StartLine, StartColumn int }
					}
				}
			}
		}
	}
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if got.Version != "2.1.0" || !strings.HasSuffix(got.Schema, "/sarif-schema-2.1.0.json") || len(got.Runs) != 1 {
		t.Fatalf("%s", data)
	}
	run := got.Runs[0]
	kinds := []string{}
	for _, r := range run.Tool.Driver.Rules {
		kinds = append(kinds, r.ID)
		if r.ShortDescription.Text == "" || r.DefaultConfiguration.Level == "" {
			t.Errorf("rule %+v is not described", r)
		}
	}
	if run.Tool.Driver.Name != "weir" || run.ColumnKind != "unicodeCodePoints" || len(run.Results) != 3 {
		t.Errorf("%s", data)
	}
	for _, r := range run.Results {
		where := r.Locations[0].PhysicalLocation
		if !slices.Contains(kinds, r.RuleID) || r.Level != "error" || r.Message.Text == "" ||
			where.ArtifactLocation.URI != "my%20rules/%C3%BC.yaml" || where.Region.StartLine != 2 ||
			where.Region.StartColumn < 15 {
			t.Errorf("result %+v", r)
		}
	}
}

// Every warning that there is has a kind in SARIF.
func TestWarningsAreKnown(t *testing.T) {
	path := filepath.FromSlash("../../pkg/descriptors/rulefile/testdata/rules/warnings.txt")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	rules, _, _ := strings.Cut(string(data), "---- compiled")
	f, err := Check(descriptors.Process{}, []reload.File{{Name: "rules.yaml", Data: []byte(rules)}}, nil)
	if err != nil || f.Warnings < 2 {
		t.Fatalf("%+v, error %v", f, err)
	}
	for _, p := range f.Problems {
		if !slices.ContainsFunc(sarifKinds, func(k struct{ code, severity, about string }) bool {
			return k.code == p.Code && k.severity == p.Severity
		}) {
			t.Errorf("%s has the code %s, which SARIF is not told", p.Message, p.Code)
		}
	}
}

// Of a long line, and one with tabs and wide characters, what is around the place is shown, and the caret stands below
// it.
func TestExcerpt(t *testing.T) {
	for _, tt := range []struct {
		source string
		column int
		want   string
	}{
		{
			strings.Repeat("x", 300) + "HERE" + strings.Repeat("y", 300), 301,
			"  7 | ..." + strings.Repeat("x", 55) + "HERE" + strings.Repeat("y", 51) + "...\n    |    " +
				strings.Repeat(" ", 55) + "^\n",
		},
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

// One line of many megabytes with very many errors does not make an answer of many more.
func TestFindingsAreBounded(t *testing.T) {
	text := "domain: a\ndescriptors: [" + strings.Repeat("{kay: ääääääää}, ", 30_000) + "]\n"
	f, err := Check(descriptors.Process{}, []reload.File{{Name: "rules.yaml", Data: []byte(text)}}, nil)
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
		"sarif":  func(w io.Writer) error { return json.NewEncoder(w).Encode(f.SARIF("v1")) },
		"github": func(w io.Writer) error { f.GitHub(w); return nil },
	} {
		var out strings.Builder
		if err := write(&out); err != nil {
			t.Fatal(err)
		}
		if out.Len() > 4<<20 {
			t.Errorf("%s has %d bytes", format, out.Len())
		}
		if want := "and 29000 more in this file"; !strings.Contains(out.String(), want) {
			t.Errorf("%s does not say %q", format, want)
		}
	}
	var out strings.Builder
	f.Problems[500].Text(&out)
	if lines := strings.Split(out.String(), "\n"); len(lines) < 3 || !strings.HasPrefix(lines[1], "  2 | ...") ||
		!strings.HasPrefix(string([]rune(lines[1])[strings.Index(lines[2], "^"):]), "kay: ") {
		t.Errorf("the caret does not stand below the place:\n%s", out.String())
	}
}
