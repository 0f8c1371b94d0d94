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
			takes := a.Takes(field)
			switch field {
			case "engine":
				takes = a == limiter.Funnel || a == limiter.TokenBucket
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
	const perSecond = "requests_per_unit: 10, unit: second, algorithm: "
	for _, of := range []struct {
		field, rest string
		says        string   // in the row
		takes       []string // values
		refuses     []string
		unset       string // the default: another value that means the same
	}{
		{"requests_per_unit", "unit: second", "number", []string{"0", "4294967295"}, []string{"-1", "4294967296", "1.5"}, ""},
		{"unit", "requests_per_unit: 1", "`year`", []string{"second", "Week", "YEAR"}, []string{"decade"}, ""},
		{"unit_multiplier", "requests_per_unit: 1, unit: second", "number from 1", []string{"1", "60"}, []string{"0"}, "1"},
		{"window", "requests_per_unit: 1", "1ms to 10 years", []string{"1ms", "3650d"}, []string{"900us", "3651d"}, ""},
		{"algorithm", "requests_per_unit: 1, unit: second", "`fixed_window`", nil, []string{"x"}, "fixed_window"},
		{
			"charge_denied", perSecond + "funnel", "`none`; for `fixed_window`: `full`",
			[]string{"none", "remaining", "full"},
			[]string{"all"},
			"none",
		},
		{"charge_denied", perSecond + "fixed_window", "`none`; for `fixed_window`: `full`", nil, nil, "full"},
		{"burst", perSecond + "funnel", "number from 1", []string{"1", "1000"}, []string{"0"}, "10"},
		{"initial", perSecond + "token_bucket", "`full`, `empty`", []string{"full", "empty"}, []string{"half"}, "full"},
		{"refill", perSecond + "token_bucket", "`greedy`, `interval`", []string{"interval"}, []string{"x"}, "greedy"},
		{"engine", perSecond + "funnel", "`weir`, `redis_cell`", []string{"redis_cell"}, []string{"x"}, "weir"},
		{"max_wait", perSecond + "smooth_bursty", "1ms to 1h", []string{"1ms", "1h"}, []string{"900us", "61m", "0s"}, ""},
		{"max_cost", perSecond + "smooth_bursty", "the whole windows in an hour", []string{"1"}, []string{"0"}, "36000"},
		{
			"burst_seconds", perSecond + "smooth_bursty", "0.001 to 3600",
			[]string{"0.001", "3600"},
			[]string{"0.0001", "3601", "0"},
			"1",
		},
		{"warm_up", perSecond + "smooth_warming_up", "1ms to 1h", []string{"1ms", "1h"}, []string{"900us", "61m"}, "10s"},
		{"cold_factor", perSecond + "smooth_warming_up", "1.01 to 100", []string{"1.01", "100"}, []string{"1", "101"}, "3"},
		{"segments", perSecond + "sliding_window", "1 to 1000", []string{"1", "1000"}, []string{"0", "1001"}, "10"},
		{"oldest", perSecond + "sliding_window", "`proportional`", []string{"full", "none"}, []string{"x"}, "proportional"},
		{
			"segment_cap", perSecond + "sliding_window", "1 to `requests_per_unit`",
			[]string{"1", "10"},
			[]string{"0", "11"},
			"",
		},
		{"align", perSecond + "fixed_window", "`first_hit`", []string{"first_hit"}, []string{"x"}, "epoch"},
		{
			"time_zone", "requests_per_unit: 10, unit: day, align: calendar", "IANA name",
			[]string{"Europe/Berlin"},
			[]string{"CEST"},
			"UTC",
		},
		{
			"lease", "requests_per_unit: 10, algorithm: concurrency", "1ms to 10 years",
			[]string{"1ms", "3650d"},
			[]string{"900us", "3651d"},
			"60s",
		},
		{
			"max_log_entries", perSecond + "sliding_log", "1 to 1000000",
			[]string{"10", "1000000"},
			[]string{"0", "9", "1000001"},
			"",
		},
		{"consistency", perSecond + "funnel", "`strict`, `leased`", []string{"leased"}, []string{"x"}, "strict"},
		{
			"lease_for", perSecond + "funnel, consistency: leased", "5ms to 1s",
			[]string{"5ms", "1s"},
			[]string{"4ms", "1001ms"},
			"50ms",
		},
	} {
		found := false
		for _, rows := range referenceTables(t) {
			for _, row := range rows {
				found = found || row[0] == "`"+of.field+"`" && strings.Contains(strings.Join(row, " | "), of.says)
			}
		}
		if !found {
			t.Errorf("no row of %s says %s", of.field, of.says)
		}
		for _, v := range of.takes {
			if _, _, err := load(of.rest, of.field, v); err != nil {
				t.Errorf("%s: %s is refused: %v", of.field, v, err)
			}
		}
		for _, v := range of.refuses {
			if _, _, err := load(of.rest, of.field, v); err == nil {
				t.Errorf("%s: %s is taken", of.field, v)
			}
		}
		if of.unset == "" {
			continue
		}
		left, leftPlace, err := load(of.rest, "", "")
		given, givenPlace, err2 := load(of.rest, of.field, of.unset)
		if err := errors.Join(err, err2); err != nil || left != given || leftPlace != givenPlace {
			t.Errorf("%s: %s is not the default: %+v %+v, want %+v %+v, error %v", of.field, of.unset, given, givenPlace,
				left, leftPlace, err)
		}
	}
}
