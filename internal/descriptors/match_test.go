package descriptors_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/internal/test/ruletest"
)

const matchRules = `
domain: shop
descriptors:
  - key: path
    value: /a/*
    descriptors: [{key: method}]
  - {key: path, value: '*.html'}
  - {key: path, value: /a/b}
  - key: path
    descriptors: [{key: user}]
  - {key: glob, value: a*b*c}
  - {key: glob, value: '*x*y*'}
  - {key: glob, value: '**z'}
  - {key: overlap, value: ab*ba}
  - {key: overlap, value: '*x*x*'}
  - {key: order, value: '*.x'}
  - {key: order, value: a*}
  - key: parent
    value: exact
    descriptors: [{key: child, value: one}]
  - key: parent
    value: ex*
    descriptors: [{key: child, value: two}]
  - key: parent
    descriptors: [{key: child}]
`

func TestMatchTakesLinearTime(t *testing.T) {
	value := strings.Repeat("a", 100_000)
	set := ruletest.Compile(t, "domain: d\ndescriptors: [{key: k, value: '"+strings.Repeat("a*", 1000)+"b'}]")
	if r := set.Domain("d").Match([]descriptors.Entry{{Key: "k", Value: value}}); r != nil {
		t.Errorf("Match found %s", r.Path)
	}
}

// TestMatchOfManyLengths: the longest fixed text that a value begins, or ends, with leads to all shorter ones.
func TestMatchOfManyLengths(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		has, pattern := strings.HasPrefix, func(text string) string { return text + "*" }
		if rapid.Bool().Draw(t, "ends") {
			has, pattern = strings.HasSuffix, func(text string) string { return "*" + text }
		}
		texts := rapid.StringMatching("[ab]{0,3}(ab|a){0,12}[ab]{0,2}")
		var known []string
		var rules strings.Builder
		rules.WriteString("domain: d\ndescriptors:\n  - {key: other}\n")
		for _, text := range rapid.SliceOfN(texts, 0, 60).Draw(t, "texts") {
			covers := func(earlier string) bool { return has(text, earlier) }
			if !slices.ContainsFunc(known, covers) { // such a pattern is refused
				known = append(known, text)
				fmt.Fprintf(&rules, "  - {key: k, value: '%s'}\n", pattern(text))
			}
		}
		set, err := rulefile.Compile([]rulefile.File{{Name: "f", Data: []byte(rules.String())}})
		if err != nil {
			t.Fatal(err, rules.String())
		}
		for _, value := range rapid.SliceOfN(texts, 1, 20).Draw(t, "values") {
			want := ""
			first := slices.IndexFunc(known, func(text string) bool { return has(value, text) })
			if first >= 0 {
				want = "k=" + pattern(known[first])
			}
			got := ""
			if r := set.Domain("d").Match(entry(value)); r != nil {
				got = r.Path
			}
			if got != want {
				t.Fatalf("%q matches %q, want %q, of\n%s", value, got, want, rules.String())
			}
		}
	})
}

func TestMatchAllocatesNothing(t *testing.T) {
	shop := ruletest.Compile(t, matchRules).Domain("shop")
	for _, text := range []string{
		"path=/a/b", "path=/a/x method=GET", "path=/b/x.html", "path=/c", "glob=-y-x-y-",
		"no=no",
	} {
		es := ruletest.Entries(text)
		if n := testing.AllocsPerRun(100, func() { shop.Match(es) }); n != 0 {
			t.Errorf("Match(%s) allocates %v times, want 0", text, n)
		}
	}
}

// oracleRule is a descriptor as a slow reader of rules.md would keep it.
type oracleRule struct {
	key, value string
	children   []*oracleRule
}

// find is what rules.md says of one level, by looking at each rule in turn.
func find(level []*oracleRule, e descriptors.Entry) *oracleRule {
	for _, r := range level {
		if r.key == e.Key && r.value == e.Value && r.value != "" && !strings.Contains(r.value, "*") {
			return r
		}
	}
	for _, r := range level {
		if r.key != e.Key || !strings.Contains(r.value, "*") {
			continue
		}
		pattern := strings.ReplaceAll(regexp.QuoteMeta(r.value), `\*`, `(?s:.*)`)
		if regexp.MustCompile(`\A` + pattern + `\z`).MatchString(e.Value) {
			return r
		}
	}
	for _, r := range level {
		if r.key == e.Key && r.value == "" {
			return r
		}
	}
	return nil
}

// drawLevel draws descriptors of few keys and letters, so that they get in each other's way, and writes them as
// YAML. What Compile would refuse is left out.
func drawLevel(t *rapid.T, depth int, indent string, out *strings.Builder) (level []*oracleRule) {
	taken := map[descriptors.Entry]bool{}
	n := rapid.IntRange(1, 8).Draw(t, "descriptors")
	for range n {
		r := &oracleRule{
			key:   rapid.SampledFrom([]string{"k", "l"}).Draw(t, "key"),
			value: rapid.StringMatching(`[ab*]{0,6}`).Draw(t, "value"),
		}
		if taken[descriptors.Entry{Key: r.key, Value: r.value}] || hidden(level, r) {
			continue
		}
		taken[descriptors.Entry{Key: r.key, Value: r.value}] = true
		fmt.Fprintf(out, "%s- key: %s\n%s  value: '%s'\n", indent, r.key, indent, r.value)
		if depth > 0 && rapid.Bool().Draw(t, "children") {
			fmt.Fprintf(out, "%s  descriptors:\n", indent)
			r.children = drawLevel(t, depth-1, indent+"  ", out)
		}
		level = append(level, r)
	}
	return level
}

// hidden reports whether a rule above hides r: one that matches whatever r matches, tried on every text up to the
// length at which patterns of this size differ.
func hidden(level []*oracleRule, r *oracleRule) bool {
	for _, above := range level {
		if above.key != r.key {
			continue
		}
		all := strings.Trim(above.value, "*") == "" && above.value != ""
		own := strings.Trim(r.value, "*") == "" && r.value != ""
		if r.value == "" && all || above.value == "" && own {
			return true
		}
		if strings.Contains(r.value, "*") && strings.Contains(above.value, "*") && covers(above.value, r.value) {
			return true
		}
	}
	return false
}

func covers(above, below string) bool {
	for _, fill := range []string{"", "a", "b", "c", "ab", "ba", "cc", "acb", "bca"} {
		text := strings.ReplaceAll(below, "*", fill)
		if find([]*oracleRule{{key: "k", value: above}}, descriptors.Entry{Key: "k", Value: text}) == nil {
			return false
		}
	}
	return true
}

func TestMatchAgreesWithOracle(t *testing.T) {
	rapid.Check(t, checkAgainstOracle)
}

func FuzzMatch(f *testing.F) {
	f.Fuzz(rapid.MakeFuzz(checkAgainstOracle))
}

func checkAgainstOracle(t *rapid.T) {
	var rules strings.Builder
	rules.WriteString("domain: d\ndescriptors:\n")
	level := drawLevel(t, 2, "", &rules)
	set, err := rulefile.Compile([]rulefile.File{{Name: "rules.yaml", Data: []byte(rules.String())}})
	if err != nil {
		t.Fatalf("Compile: %v\n%s", err, rules.String())
	}
	for range 20 {
		es := drawEntries(t, level)
		want := oraclePath(level, es)
		got := ""
		ruletest.Explain(t, set, "d", es)
		if r := set.Domain("d").Match(es); r != nil {
			got = r.Path
		}
		if got != want {
			t.Fatalf("Match(%v) is %q, want %q\n%s", es, got, want, rules.String())
		}
	}
}

// drawEntries draws entries that lead down the tree more often than not.
func drawEntries(t *rapid.T, level []*oracleRule) (es []descriptors.Entry) {
	for range rapid.IntRange(0, 4).Draw(t, "entries") {
		e := descriptors.Entry{
			Key:   rapid.SampledFrom([]string{"k", "l", "m"}).Draw(t, "key"),
			Value: rapid.StringMatching(`[abc*]{0,4}`).Draw(t, "value"),
		}
		if len(level) > 0 && rapid.IntRange(0, 4).Draw(t, "toward a rule") > 0 {
			r := rapid.SampledFrom(level).Draw(t, "rule")
			e.Key = r.key
			parts := strings.Split(r.value, "*")
			for i := range parts[1:] {
				parts[i+1] = rapid.StringMatching(`[ab]{0,2}`).Draw(t, "for *") + parts[i+1]
			}
			if r.value != "" {
				e.Value = strings.Join(parts, "")
			}
		}
		es = append(es, e)
		if r := find(level, e); r != nil {
			level = r.children
		}
	}
	return es
}

func oraclePath(level []*oracleRule, es []descriptors.Entry) string {
	var path []string
	for _, e := range es {
		r := find(level, e)
		if r == nil {
			return ""
		}
		step := r.key
		if r.value != "" {
			step += "=" + r.value
		}
		path, level = append(path, step), r.children
	}
	return strings.Join(path, " > ")
}
