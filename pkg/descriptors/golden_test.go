package descriptors_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
)

var update = flag.Bool("update", false, "write what Compile says into testdata/rules")

// TestGolden compiles the rule files of each testdata/rules/*.txt and compares what comes out with what is
// written below the line "---- compiled ----" or "---- errors ----". A line "==== name ====" begins another file.
func TestGolden(t *testing.T) {
	cases, err := filepath.Glob("testdata/rules/*.txt")
	if err != nil || len(cases) == 0 {
		t.Fatalf("no cases in testdata/rules: %v", err)
	}
	for _, path := range cases {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			rules := string(data)
			for _, line := range []string{"\n---- compiled ----\n", "\n---- errors ----\n"} {
				rules, _, _ = strings.Cut(rules, line)
			}
			got := rules + "\n" + result(t, split(rules+"\n"))
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(string(data), got); diff != "" && !*update {
				t.Errorf("-want +got (go test -update writes it)\n%s", diff)
			}
		})
	}
}

func split(text string) []descriptors.File {
	files := []descriptors.File{{Name: "rules.yaml"}}
	for line := range strings.Lines(text) {
		if name, ok := strings.CutPrefix(line, "==== "); ok {
			name = strings.TrimSuffix(name, " ====\n")
			files = append(files, descriptors.File{Name: name, Included: !strings.HasSuffix(name, ".yaml")})
			continue
		}
		last := &files[len(files)-1]
		last.Data = append(last.Data, line...)
	}
	if len(files[0].Data) == 0 {
		files = files[1:]
	}
	return files
}

func result(t *testing.T, files []descriptors.File) string {
	t.Helper()
	set, err := descriptors.Compile(files)
	if err == nil {
		warnings := ""
		for _, w := range set.Warnings() {
			warnings += "warning " + w.Code + ": " + w.Error() + "\n"
		}
		return "---- compiled ----\n" + show(t, set) + warnings
	}
	var all descriptors.Errors
	if !errors.As(err, &all) || len(all) == 0 || set != nil {
		t.Fatalf("Compile gave set %v and %T %v, want Errors alone", set, err, err)
	}
	return "---- errors ----\n" + err.Error() + "\n"
}

// show is a set's JSON with one rule a line.
func show(t *testing.T, set *descriptors.Set) string {
	t.Helper()
	data, err := set.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	var parsed struct {
		Domains []struct {
			Domain string
			Rules  []json.RawMessage
		}
	}
	if err := json.Unmarshal(data, &parsed); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	for _, d := range parsed.Domains {
		fmt.Fprintf(&b, "domain %s\n", d.Domain)
		for _, r := range d.Rules {
			fmt.Fprintf(&b, "  %s\n", r)
		}
	}
	return b.String()
}
