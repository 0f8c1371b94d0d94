package descriptors_test

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

//go:embed testdata/match.yaml
var matchRules string

func TestMatchTakesLinearTime(t *testing.T) {
	value := strings.Repeat("a", 100_000)
	set := casetest.Compile(t, "domain: d\ndescriptors: [{key: k, value: '"+strings.Repeat("a*", 1000)+"b'}]")
	if r := set.Domain("d").Match([]descriptors.Entry{{Key: "k", Value: value}}); r != nil {
		t.Errorf("Match found %s", r.Path)
	}
}

// TestMatchOfManyLengths: the longest prefix or suffix of a value leads to all shorter ones.
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
	shop := casetest.Compile(t, matchRules).Domain("shop")
	for _, text := range []string{
		"path=/a/b", "path=/a/x method=GET", "path=/b/x.html", "path=/c", "glob=-y-x-y-",
		"no=no",
	} {
		es := casetest.Entries(text)
		if n := testing.AllocsPerRun(100, func() { shop.Match(es) }); n != 0 {
			t.Errorf("Match(%s) allocates %v times, want 0", text, n)
		}
	}
}

// matches returns how well a descriptor's value matches, computed slowly from rules.md: 0 not at all, 1 as a pattern,
// more by the length of a block, 1000 as a value.
func matches(d *descriptors.Descriptor, value string) int {
	var pattern string
	text := d.Value
	if d.Match.Form != "" {
		text = d.Match.Items[0].Text
	}
	switch {
	case d.Match.Form == descriptors.FormCIDR:
		prefix := netip.MustParsePrefix(text)
		if addr, err := netip.ParseAddr(value); err == nil && prefix.Contains(addr.Unmap()) {
			return 1 + prefix.Bits()
		}
		return 0
	case d.Match.Form == descriptors.FormRegex:
		pattern = `(?s)\A(?:` + text + `)\z`
	case strings.Contains(text, "*"):
		pattern = `\A` + strings.ReplaceAll(regexp.QuoteMeta(text), `\*`, `(?s:.*)`) + `\z`
	case text == value && text != "":
		return 1000
	default:
		return 0
	}
	if regexp.MustCompile(pattern).MatchString(value) {
		return 1
	}
	return 0
}

// find returns the exact value, else the first pattern in file order (only the longest block counts), else the key
// alone.
func find(level []*descriptors.Descriptor, e descriptors.Entry) (found *descriptors.Descriptor) {
	best, longest := 0, 0
	for _, d := range level {
		if n := matches(d, e.Value); d.Key == e.Key && (n == 1000 || d.Match.Form == descriptors.FormCIDR) {
			longest = max(longest, n)
		}
	}
	for _, d := range level {
		n := matches(d, e.Value)
		switch isBlock := d.Match.Form == descriptors.FormCIDR; {
		case d.Key != e.Key:
		case n == 1000, n > 0 && best == 0 && longest < 1000 && (!isBlock || n == longest):
			found, best = d, n
		case found == nil && d.Value == "" && d.Match.Form == "":
			found = d
		}
	}
	return found
}

// drawRule draws a descriptor of few keys and letters, so that rules often overlap.
func drawRule(t *rapid.T) *descriptors.Descriptor {
	draw := func(expr string) string { return rapid.StringMatching(expr).Draw(t, "value") }
	d := &descriptors.Descriptor{Key: rapid.SampledFrom([]string{"k", "l", "m"}).Draw(t, "key")}
	switch rapid.SampledFrom([]string{"value", "values", "pattern", "regex", "cidr", "key"}).Draw(t, "form") {
	case "value":
		d.Value = draw(`1\.1\.[0-3]\.[0-3]|[1.ab]{1,3}`)
	case "values":
		d.Match = descriptors.OneOf(draw(`1\.1\.[0-3]\.[0-3]|[1.ab]{1,3}`))
	case "pattern":
		d.Value = draw(`[1.]{0,3}\*[1.*]{0,3}|[ab*]{0,3}\*[ab*]{0,3}`)
	case "regex":
		d.Match = descriptors.MatchingRegex(draw(`(1|\\.|\.|[123a]|\[12b\]|1\*|2\?|\(1\|\\.2\)|\\.\+){1,6}`))
	case "cidr":
		addr := netip.AddrFrom4([4]byte{1, 1, byte(rapid.IntRange(0, 3).Draw(t, "c")), byte(rapid.IntRange(0, 3).Draw(t, "d"))})
		d.Match = descriptors.InBlocks(netip.PrefixFrom(addr, rapid.IntRange(0, 32).Draw(t, "bits")).Masked().String())
	}
	if rapid.Bool().Draw(t, "limited") {
		d.RateLimit = &descriptors.RateLimit{Params: limiter.Params{Limit: 1}, Unit: descriptors.Day}
	}
	return d
}

// drawSet draws a tree of rules of all forms that a Builder takes, in domain d.
func drawSet(t *rapid.T) (*descriptors.Set, []*descriptors.Descriptor) {
	var top []*descriptors.Descriptor
	build := func() (*descriptors.Set, error) {
		b := descriptors.NewBuilder(descriptors.Process{})
		b.Add("d", top...)
		return b.Build()
	}
	line := 0
	var add func(level *[]*descriptors.Descriptor, depth int)
	add = func(level *[]*descriptors.Descriptor, depth int) {
		for range rapid.IntRange(1, 8).Draw(t, "rules") {
			d := drawRule(t)
			line++
			d.At = descriptors.Position{File: "f", Line: line}
			*level = append(*level, d)
			if _, err := build(); err != nil { // what hides another is left out
				*level = (*level)[:len(*level)-1]
			} else if depth > 0 && rapid.Bool().Draw(t, "children") {
				add(&d.Descriptors, depth-1)
			}
		}
	}
	for len(top) == 0 {
		add(&top, 2)
	}
	set, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return set, top
}

// checkAgainstOracle compares Match with find, level by level.
func checkAgainstOracle(t *rapid.T) {
	set, top := drawSet(t)
	for range 20 {
		es, rule := drawEntries(t, top)
		want, got := "", ""
		if casetest.Explain(t, set, "d", es); rule != nil {
			want = fmt.Sprintf("f:%d", rule.At.Line)
		}
		if r := set.Domain("d").Match(es); r != nil {
			got = r.Source
		}
		if got != want {
			text, err := json.Marshal(set.Domain("d").Rules())
			t.Fatalf("Match(%v) is %q, want %q\n%v %s", es, got, want, err, text)
		}
	}
}

// drawEntries draws entries that usually lead down the tree, and the rule that they reach.
func drawEntries(t *rapid.T, level []*descriptors.Descriptor) (es []descriptors.Entry, rule *descriptors.Descriptor) {
	for range rapid.IntRange(0, 4).Draw(t, "entries") {
		e := descriptors.Entry{
			Key:   rapid.SampledFrom([]string{"k", "l", "m", "n"}).Draw(t, "key"),
			Value: rapid.StringMatching(`(::ffff:)?1\.1\.[0-3]\.[0-3]|[123.]{0,7}|[abc*]{0,4}`).Draw(t, "value"),
		}
		if len(level) > 0 && rapid.IntRange(0, 4).Draw(t, "toward a rule") > 0 {
			r := rapid.SampledFrom(level).Draw(t, "rule")
			if e.Key = r.Key; r.Value != "" {
				e.Value = strings.ReplaceAll(r.Value, "*", rapid.StringMatching(`[1ab]{0,2}`).Draw(t, "for *"))
			}
		}
		es = append(es, e)
		if rule = find(level, e); rule != nil {
			level = rule.Descriptors
		} else {
			level = nil
		}
	}
	return es, rule
}

func TestMatchAgreesWithOracle(t *testing.T) { rapid.Check(t, checkAgainstOracle) }

func FuzzMatch(f *testing.F) { f.Fuzz(rapid.MakeFuzz(checkAgainstOracle)) }
