package descriptors_test

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/internal/offline/explain"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// lines are rules of one domain and level, with %d (and %[1]d) for their number.
func lines(n int, line string) string {
	var rules strings.Builder
	rules.WriteString("domain: d\ndescriptors:\n")
	for i := range n {
		fmt.Fprintf(&rules, "  - "+line+"\n", i)
	}
	return rules.String()
}

func entry(value string) []descriptors.Entry { return []descriptors.Entry{{Key: "k", Value: value}} }

const limited = ", rate_limit: {requests_per_unit: 1, unit: second}"

// Results of long values, by form.
func TestLongValues(t *testing.T) {
	const long = "(value too long to match)"
	expand := strings.NewReplacer("LIMITED", limited+"}", "E_FILL", strings.Repeat("é", descriptors.MaxPatternValue),
		"FILL", strings.Repeat("a", descriptors.MaxPatternValue))
	for _, tt := range casetest.Table[struct{ Name, Rules, Value, Want string }](t, "testdata/long_values.yaml") {
		t.Run(tt.Name, func(t *testing.T) {
			value, want := entry(expand.Replace(tt.Value)), expand.Replace(tt.Want)
			set := casetest.Compile(t, "domain: d\ndescriptors:\n  - "+expand.Replace(tt.Rules)+"\n")
			got, r := "", set.Domain("d").Match(value)
			if r != nil {
				got = r.Path
			}
			if got != want || r != nil && r.IsTooLong() != (want == long) {
				t.Errorf("Match is %.60q, want %.60q", got, want)
			}
			if _, explained := explain.MatchDescriptor(set, "d", value); explained != r {
				t.Errorf("MatchDescriptor ends at %v, Match at %v", explained, r)
			}
		})
	}
}

// A value that is too long is denied, whatever limit the request carries, and even while the store fails.
func TestTooLongIsDenied(t *testing.T) {
	d := casetest.Compile(t,
		"domain: d\ndescriptors: [{key: k, regex: '.*x.*'"+limited+"}, {key: l"+limited+"}]").Domain("d")
	es := entry(strings.Repeat("a", 2000))
	own, err := d.Override(d.Match(es), 1_000_000, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range []*descriptors.Limit{d.Match(es).Limits[0], own} {
		if l.Policy.Limit() != 0 || l.OnStoreFailure != descriptors.Deny || l.Rule.Mode != limiter.Enforce {
			t.Errorf("limit is %d, %s while the store fails, mode %v", l.Policy.Limit(), l.OnStoreFailure, l.Rule.Mode)
		}
		if key := string(l.AppendKey(nil, es)); key != "fixed_window|d|*#too_long=" {
			t.Errorf("key is %s: one for all values, or whoever sends them makes counters", key)
		}
	}
}

// A value of any length is matched by the rule that matches all of it, or is denied. Only rules that deny nothing may
// be missed by a long value.
func checkLong(t *rapid.T) {
	var rules []*regexp.Regexp
	var denies []bool
	text := "domain: d\ndescriptors:\n"
	for i := range rapid.IntRange(1, 12).Draw(t, "rules") {
		form := rapid.SampledFrom([]string{"value", "regex"}).Draw(t, "form")
		var line, whole string
		if form == "value" {
			value := rapid.StringMatching(`(/a|/b|ab?)?\*((/a|b|ab/|/)\*){0,3}(/a|b)?`).Draw(t, "value")
			line, whole = value, `(?s)\A`+strings.ReplaceAll(regexp.QuoteMeta(value), `\*`, `.*`)+`\z`
		} else {
			line = rapid.StringMatching(`(/a|a|/)?(\.\*|\[ab\]\*|\[/a\]\+|b|\(a\|/b\)\*|\.){1,4}(b|/a)?`).Draw(t,
				"regex")
			whole = `(?s)\A(?:` + line + `)\z`
		}
		denied := rapid.Bool().Draw(t, "denies")
		line = fmt.Sprintf("  - {key: k, %s: '%s'", form, line)
		if denied {
			line += limited
		}
		line += fmt.Sprintf(", owner: r%d}\n", i)
		if _, err := rulefile.Compile([]rulefile.File{{Name: "f", Data: []byte(text + line)}}); err == nil {
			rules, denies, text = append(rules, regexp.MustCompile(whole)), append(denies, denied), text+line
		}
	}
	if len(rules) == 0 {
		return
	}
	set, err := rulefile.Compile([]rulefile.File{{Name: "f", Data: []byte(text)}})
	if err != nil {
		t.Fatal(err)
	}
	size := descriptors.MaxPatternValue
	for range 5 {
		begin := rapid.StringMatching(`[/ab]{0,6}`).Draw(t, "begin")
		middle := strings.Repeat(rapid.SampledFrom([]string{"a", "b", "/", "c", "/a"}).Draw(t, "fill"), size)
		middle = middle[:size-rapid.IntRange(0, 8).Draw(t, "less")]
		value := begin + middle + rapid.StringMatching(`[/ab\n]{0,4}`).Draw(t, "end")
		r := set.Domain("d").Match(entry(value))
		want := -1
		for i := range rules {
			if rules[i].MatchString(value) {
				want = i
				break
			}
		}
		isWanted := r == nil && want < 0 || r != nil && want >= 0 && r.Source == fmt.Sprintf("f:%d", 3+want)
		switch {
		case isWanted:
		case r != nil && r.IsTooLong() && len(value) > size:
		case len(value) > size && want >= 0 && !denies[want]:
		default:
			t.Fatalf("Match(%q x %d ... %q) is %+v, want rule %d of\n%s", begin, len(middle), value[len(begin)+len(middle):], r,
				want, text)
		}
	}
}

func TestLongValuesAgreeWithOracle(t *testing.T) { rapid.Check(t, checkLong) }

func FuzzLongValues(f *testing.F) { f.Fuzz(rapid.MakeFuzz(checkLong)) }

// Regexes match as in Go's regexp, for any text and for invalid UTF-8.
func FuzzRegex(f *testing.F) {
	for _, seed := range [][2]string{
		{`[a-z]+`, "abc"},
		{`(?i)straße|ſ`, "STRASSE"},
		{`^foo$|^a^|$b|(^c)*`, "foo"},
		{`\p{L}+\d`, "é1"},
		{`[^/]*`, "\xff\xfe"},
		{`.{3}`, "日本語"},
		{`(a|b)*c{2,3}?`, "abcc"},
		{`\x{10ffff}?`, "\U0010ffff"},
		{`[^\n]*\z`, "x\n"},
		{`(?U)a+b*`, "aab"},
		{`\Qa.b\E`, "a.b"},
		{`$^`, ""},
		{`k`, "\u212a"},
		{`(?i)k`, "\u212a"},
		{`�`, "\xc3"},
		{`(?-s).*`, "a\nb"},
		{`[[:^alpha:]]`, "é"},
		{`(|a)+`, "aa"},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, text, value string) {
		if strings.ContainsFunc(text, func(c rune) bool {
			return c < ' ' || c > '~' && c < 0xa0 || c == '\ufffd' ||
				c == '\ufeff'
		}) {
			return // no YAML
		}
		whole, err := regexp.Compile(`(?s)\A(?:` + text + `)\z`)
		if err != nil || len(value) > descriptors.MaxPatternValue {
			return
		}
		rules := "domain: d\ndescriptors:\n  - {key: k, regex: '" + strings.ReplaceAll(text, "'", "''") + "'}\n"
		set, err := rulefile.Compile([]rulefile.File{{Name: "f", Data: []byte(rules)}})
		if err != nil {
			if _, ok := errors.AsType[descriptors.Errors](err); !ok {
				t.Fatal(err)
			}
			return
		}
		if got, want := set.Domain("d").Match(entry(value)) != nil, whole.MatchString(value); got != want {
			t.Errorf("regex %q matches %q: %v, want %v", text, value, got, want)
		}
	})
}

// costly are rules and values that took milliseconds when each expression was tried on the whole value.
var costly = []struct {
	name, rules string
	fill        string
}{
	{"regexes", lines(30, "{key: k, regex: '.*[/-]res%d[/-].*'}"), "/res-"},
	{"regexes_unicode", lines(5, `{key: k, regex: '.*\pL+res%d[/-].*'}`), "é"},
	{"bad_regexes", lines(30, "{key: k, regex: '(.*a){3}%d.{4}b.*'}"), "ab"},
	{"shared_prefix", lines(10_000, "{key: k, value: '/users/*/r%d/*'}"), "/r1/r22/r333/r4444"},
	{"shared_texts", lines(10_000, "{key: k, value: '/users/*/items/*/r%d/*'}"), "/r1/items/r333/r4444"},
	{"shared_text_suffixes", lines(10_000, "{key: k, value: '/users/*/items/*/r%d'}"), "/items/r1"},
	{"pairs", lines(10_000, "{key: k, value: '*/a%[1]d/*/b%[1]d/*'}"), "/a1/b2/a3/b1/a4/a55/a666"},
	{"nested_prefixes", nested(1000), "a"},
}

// nested are patterns each of which begins with the one before.
func nested(n int) string {
	var rules strings.Builder
	rules.WriteString("domain: d\ndescriptors:\n")
	for i := n; i > 0; i-- {
		fmt.Fprintf(&rules, "  - {key: k, value: '/users/%s*b'}\n", strings.Repeat("a", i))
	}
	return rules.String()
}

func costlyValue(fill string, size int) []descriptors.Entry {
	const prefix = "/users/"
	return entry(prefix + strings.Repeat(fill, size/len(fill)))
}

// A longer value costs no more than a value of MaxPatternValue bytes. (Once it cost 64 times as much.)
func TestLongValuesCostNoMore(t *testing.T) {
	casetest.WithoutRace(t)
	for _, c := range costly {
		d := casetest.Compile(t, c.rules).Domain("d")
		took := func(es []descriptors.Entry) time.Duration {
			best := time.Hour
			for range 20 { // whoever else is busy must not count
				start := proctest.CPU(t)
				for range 20 {
					d.Match(es)
				}
				best = min(best, proctest.CPU(t)-start)
			}
			return best
		}
		short, long := took(costlyValue(c.fill, descriptors.MaxPatternValue-10)), took(costlyValue(c.fill, 64<<10-10))
		if long > 4*short+20*10*time.Microsecond {
			t.Errorf("%s: 20 matches of 64 KiB take %s, of 1 KiB %s", c.name, long, short)
		}
	}
}

func TestLongValuesAllocateNothing(t *testing.T) {
	casetest.WithoutRace(t)
	for _, c := range costly {
		d := casetest.Compile(t, c.rules).Domain("d")
		for _, size := range []int{20, 1000, 64<<10 - 10} {
			es := costlyValue(c.fill, size)
			if n := testing.AllocsPerRun(20, func() { d.Match(es) }); n >= 1 && !casetest.Race {
				t.Errorf("%s: a match of %d bytes allocates %v times", c.name, size, n)
			}
		}
	}
}

// Patterns with the same beginning compile in linear time. (Once each was compared with all earlier ones: 40 times as
// many took 1,600 times as long.)
func TestPatternsCompileInLinearTime(t *testing.T) {
	casetest.WithoutRace(t)
	took := func(n int) time.Duration {
		best := time.Hour
		files := []rulefile.File{{Name: "f", Data: []byte(lines(n, "{key: k, value: '/users/*/r%d/*'}"))}}
		for range 3 {
			start := proctest.CPU(t)
			if _, err := rulefile.Compile(files); err != nil {
				t.Fatal(err)
			}
			best = min(best, proctest.CPU(t)-start)
		}
		return best
	}
	if few, many := took(1000), took(40_000); many > 800*few {
		t.Errorf("1,000 patterns take %s, 40,000 take %s", few, many)
	}
}

func TestBoundsOfRegexes(t *testing.T) {
	casetest.WithoutRace(t)
	casetest.WithoutRace(t)
	for _, tt := range []struct{ rules, want string }{
		{
			"domain: d\ndescriptors:\n  - {key: k, regex: '.*a.{20}'}\n",
			"f:3:21: regex: needs more than 2000 states; repeat less after .* and similar, or write several " +
				"descriptors",
		},
		{
			"domain: d\ndescriptors:\n  - {key: k, regex: '(?i)" + strings.Repeat(`[a-é]`, 21) + "'}\n",
			"f:3:21: regex: takes too long to compile; use fewer or smaller sets of characters such as \\pL or (?i), repeat less, " +
				"or write several descriptors",
		},
		{
			"domain: d\ndescriptors:\n  - {key: k, regex: '.*\\bbot\\b.*'}\n",
			`f:3:21: regex: has \b, \B or (?m), which are not supported; write the characters that may be there`,
		},
		{
			lines(3000, `{key: k, regex: '%d(?i)(?:\pL\pM){200}N'}`), // 27 ms each once, and nothing ended it
			"f:313:21: regex: the regexes up to here take too long to compile; repeat less in them, or write fewer",
		},
		{
			lines(500, `{key: k, regex: '%d[`+strings.Repeat(`\pL\PL`, 160)+`]'}`), // sorting takes 15 ms each
			"f:65:21: regex: the regexes up to here take too long to compile; repeat less in them, or write fewer",
		},
	} {
		_, err := rulefile.Compile([]rulefile.File{{Name: "f", Data: []byte(tt.rules)}})
		if err == nil || err.Error() != tt.want {
			t.Errorf("error %v, want %s", err, tt.want)
		}
	}
}

func BenchmarkLongValues(b *testing.B) {
	for _, c := range costly {
		d := casetest.Compile(b, c.rules).Domain("d")
		for _, size := range []int{20, 1000, 64<<10 - 10} {
			es := costlyValue(c.fill, size)
			b.Run(fmt.Sprintf("rules=%s/bytes=%d", c.name, len(es[0].Value)), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					d.Match(es)
				}
			})
		}
	}
}
