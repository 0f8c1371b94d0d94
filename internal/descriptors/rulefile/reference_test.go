package rulefile

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// referenceTables returns, for each heading of docs/reference/rules.md, the cells of the rows whose first one names
// fields.
func referenceTables(t *testing.T) map[string][][]string {
	t.Helper()
	page, err := os.ReadFile("../../../docs/reference/rules.md")
	if err != nil {
		t.Fatal(err)
	}
	tables, heading := map[string][][]string{}, ""
	for line := range strings.Lines(string(page)) {
		line = strings.TrimSpace(line)
		if title, ok := strings.CutPrefix(line, "## "); ok {
			heading = title
		}
		if strings.HasPrefix(line, "| `") {
			cells := strings.Split(strings.Trim(line, "|"), " | ")
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			tables[heading] = append(tables[heading], cells)
		}
	}
	return tables
}

func firstCells(rows [][]string) []string {
	var names []string
	for _, row := range rows {
		for name := range strings.SplitSeq(row[0], ", ") {
			names = append(names, strings.Trim(name, "`"))
		}
	}
	slices.Sort(names)
	return names
}

// TestReferenceHasEveryField: the tables of docs/reference/rules.md have exactly the fields of rule files.
func TestReferenceHasEveryField(t *testing.T) {
	r := newReader(File{Name: "rules.yaml"}, descriptors.NewBuilder(descriptors.Process{}))
	tables := referenceTables(t)
	const anything = "x-..." // which every level takes
	for heading, known := range map[string][]string{
		"Fields of a file":       r.documentFields.names,
		"Fields of a descriptor": r.descriptorFields.names,
		"Fields of a limit":      r.rateLimitFields.names,
	} {
		got := firstCells(tables[heading])
		if heading == "Fields of a limit" {
			got = append(got, firstCells(tables["Fields of an algorithm"])...)
			slices.Sort(got)
		}
		if want := slices.Sorted(slices.Values(append(slices.Clone(known), anything))); !slices.Equal(got, want) {
			t.Errorf("%s:\n%v, want\n%v", heading, got, want)
		}
	}
}

// TestReferenceSaysWhoTakesAField: the table of the algorithms' fields names the algorithms that take each.
func TestReferenceSaysWhoTakesAField(t *testing.T) {
	name := regexp.MustCompile("`(\\w+)`")
	for _, row := range referenceTables(t)["Fields of an algorithm"] {
		field := strings.Trim(row[0], "`")
		got, want := map[string]bool{}, map[string]bool{}
		for _, m := range name.FindAllStringSubmatch(row[1], -1) {
			got[m[1]] = true
		}
		for _, a := range limiter.Algorithms() {
			takes := slices.Contains(descriptors.FieldsOf(a), field)
			switch field {
			case "consistency":
				takes = a.Kind().Is(step.Prepayable)
			case "lease_for":
				want["consistency"] = true
				continue
			}
			if takes {
				want[a.String()] = true
			}
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s is of %v, want %v", field, slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
		}
	}
}

// TestReferenceBounds: bounds and defaults in the tables are true.
func TestReferenceBounds(t *testing.T) {
	const base = "domain: d\ndescriptors:\n  - key: k\n    rate_limit: {%s, %s}\n"
	load := func(rest, field, value string) (limiter.Params, descriptors.Placement, error) {
		text := fmt.Sprintf(base, rest, field+": "+value)
		if field == "" {
			text = fmt.Sprintf(base, rest, "name: x")
		}
		set, err := Compile([]File{{Name: "rules.yaml", Data: []byte(text)}})
		if err != nil {
			return limiter.Params{}, descriptors.Placement{}, err
		}
		l := set.Limits()[0]
		return l.Policy.Params(), l.Placement(), nil
	}
	text, err := os.ReadFile("testdata/bounds.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if strings.HasPrefix(line, "#") {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		field, rest, says, unset := cells[0], cells[1], cells[2], cells[5]
		found := false
		for _, rows := range referenceTables(t) {
			for _, row := range rows {
				found = found || row[0] == "`"+field+"`" && strings.Contains(strings.Join(row, " | "), says)
			}
		}
		if !found {
			t.Errorf("no row of %s says %s", field, says)
		}
		for v := range strings.FieldsSeq(cells[3]) {
			if _, _, err := load(rest, field, v); err != nil {
				t.Errorf("%s: %s is refused: %v", field, v, err)
			}
		}
		for v := range strings.FieldsSeq(cells[4]) {
			if _, _, err := load(rest, field, v); err == nil {
				t.Errorf("%s: %s is taken", field, v)
			}
		}
		if unset == "" {
			continue
		}
		left, leftPlace, err := load(rest, "", "")
		given, givenPlace, err2 := load(rest, field, unset)
		if err := errors.Join(err, err2); err != nil || left != given || leftPlace != givenPlace {
			t.Errorf("%s: %s is not the default: %+v %+v, want %+v %+v, error %v", field, unset, given, givenPlace,
				left, leftPlace, err)
		}
	}
}
