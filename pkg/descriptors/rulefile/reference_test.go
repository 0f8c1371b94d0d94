package rulefile

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// referenceTables returns, for each heading of docs/reference/rules.md, the cells of the rows whose first one names a
// field.
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
		names = append(names, strings.Trim(row[0], "`"))
	}
	slices.Sort(names)
	return names
}

// TestReferenceHasEveryField: the tables of docs/reference/rules.md have the fields that files may have, and no others.
func TestReferenceHasEveryField(t *testing.T) {
	r := newReader(File{Name: "rules.yaml"}, descriptors.NewBuilder(descriptors.Process{}), nil)
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
			takes := a.Has(field)
			switch field {
			case "engine":
				takes = a == limiter.Funnel || a == limiter.TokenBucket
			case "burst_seconds":
				takes = a.Has("burst_for")
			case "consistency":
				takes = a.CanPrepay()
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
