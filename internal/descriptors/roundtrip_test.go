package descriptors_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/internal/offline"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
)

// awkward has texts with characters that have a meaning in paths, keys and descriptors.
func awkward(from, to int) *rapid.Generator[string] {
	part := rapid.SampledFrom([]string{
		"a", "b", "=", " ", ">", " > ", `\`, ",", ", ", "|", "%", "#", "cidr", "and 2 more",
		"{",
	})
	return rapid.Map(rapid.SliceOfN(part, from, to), func(parts []string) string { return strings.Join(parts, "") })
}

func drawDescriptor(t *rapid.T) (es []descriptors.Entry) {
	for range rapid.IntRange(1, 4).Draw(t, "entries") {
		text := rapid.OneOf(awkward(0, 6), rapid.String())
		if e := (descriptors.Entry{Key: text.Draw(t, "key"), Value: text.Draw(t, "value")}); e.Key != "" {
			es = append(es, e)
		}
	}
	return es
}

// ParseEntries reverts FormatEntries for any keys and values.
func checkEntries(t *rapid.T) {
	es := drawDescriptor(t)
	if len(es) == 0 {
		return
	}
	text := descriptors.FormatEntries(es)
	got, err := descriptors.ParseEntries(text)
	if diff := cmp.Diff(es, got); diff != "" || err != nil {
		t.Fatalf("%s: %v (-want +got)\n%s", text, err, diff)
	}
}

func TestEntriesComeBack(t *testing.T) { rapid.Check(t, checkEntries) }

func FuzzEntries(f *testing.F) { f.Fuzz(rapid.MakeFuzz(checkEntries)) }

// cutRules have counters whose keys may be cut anywhere.
func cutRules(domain, name string) string {
	return fmt.Sprintf(`
domain: '%s'
descriptors:
  - key: k
    rate_limits:
      - {name: '%s', algorithm: token_bucket, refill: interval, requests_per_unit: 1, unit: second}
      - {requests_per_unit: 1, unit: second}
      - {requests_per_unit: 1, unit: hour}
    descriptors: [{key: l, rate_limit: {algorithm: funnel, requests_per_unit: 1, unit: second}}]
  - key: h
    hash_values: true
    rate_limit: {requests_per_unit: 1, unit: second}
  - {key: s, value: 's*', share_threshold: true, rate_limit: {requests_per_unit: 1, unit: second}}
  - {key: s, values: ['%s', t], share_threshold: true, rate_limit: {requests_per_unit: 1, unit: second}}
`, domain, name, strings.Repeat("t", 70))
}

// ParseKey returns the parts of a counter's key, unless the key was cut; then ParseKey says so.
func checkKeyComesBack(t *rapid.T) {
	long := rapid.OneOf(awkward(0, 4), rapid.Map(rapid.IntRange(100, 260),
		func(n int) string { return strings.Repeat("x", n) }))
	domain, name := "d", "n"
	if rapid.Bool().Draw(t, "long names") {
		domain, name = "d"+long.Draw(t, "domain"), "n"+long.Draw(t, "name")
	}
	set, err := rulefile.Compile([]rulefile.File{{Name: "f", Data: []byte(cutRules(domain, name))}})
	if err != nil {
		t.Fatal(err)
	}
	unit := rapid.SampledFrom([]string{"x", "|", "é", "世", "=", " ", "#"}).Draw(t, "unit")
	value := strings.Repeat(unit, rapid.IntRange(0, 300/len(unit)).Draw(t, "times")) + long.Draw(t, "more")
	es := []descriptors.Entry{{Key: rapid.SampledFrom([]string{"k", "h", "s"}).Draw(t, "key"), Value: value}}
	switch es[0].Key {
	case "k":
		if rapid.Bool().Draw(t, "deeper") {
			es = append(es, descriptors.Entry{Key: "l", Value: long.Draw(t, "value")})
		}
	case "s":
		es[0].Value = rapid.SampledFrom([]string{"s" + value, "t"}).Draw(t, "shared")
	}
	rule := set.Domain(domain).Match(es)
	for _, l := range rule.Limits {
		key := string(l.AppendKey(nil, es))
		got, ok := descriptors.ParseKey(key)
		if !ok {
			t.Fatalf("%s (%d bytes) is no key", key, len(key))
		}
		braced := key
		if start, rest, ok := strings.Cut(key, "|"); ok {
			braced = start + "|{" + rest + "}"
		}
		if in, ok := descriptors.ParseKey(braced); !ok || !cmp.Equal(in, got) {
			t.Fatalf("%s is read as %+v, without braces as %+v", braced, in, got)
		}
		if len(key) > 250 && key[len(key)-33] == '#' {
			continue // it was cut
		}
		if len(got.Entries) != len(es) || got.Domain != domain {
			t.Fatalf("%s is read as %+v", key, got)
		}
		for i, e := range got.Entries {
			if shown := es[0].Key == "k"; e.Key != es[i].Key || shown && e.Value != es[i].Value {
				t.Fatalf("%s is read as %+v", key, got)
			}
		}
	}
}

func TestKeysComeBack(t *testing.T) { rapid.Check(t, checkKeyComesBack) }

func FuzzParseKey(f *testing.F) { f.Fuzz(rapid.MakeFuzz(checkKeyComesBack)) }

// Keys are cut before a character or %XX that would be split, so they have 251 to 256 bytes.
func TestParseKeysThatWereCut(t *testing.T) {
	set := casetest.Compile(t, "domain: shop\ndescriptors: [{key: k, rate_limit: {requests_per_unit: 1, unit: second}}]")
	lengths := map[int]bool{}
	for n := range 300 {
		for _, unit := range []string{"x", "世", "|", "é|", "😀"} {
			es := entry(strings.Repeat("x", n) + strings.Repeat(unit, 256))
			key := string(set.Domain("shop").Match(es).Limits[0].AppendKey(nil, es))
			got, ok := descriptors.ParseKey(key)
			if !ok || got.Domain != "shop" || got.Algorithm != "fixed_window" {
				t.Fatalf("%s (%d bytes) is read as %+v, %v", key, len(key), got, ok)
			}
			lengths[len(key)] = true
		}
	}
	for _, n := range []int{253, 254, 255, 256} {
		if !lengths[n] {
			t.Errorf("no key of %d bytes was tried, only %v", n, lengths)
		}
	}
}

// drawRules draws descriptors with awkward keys and values, without those that Compile refuses.
func drawRules(t *rapid.T, indent string, depth int) string {
	var text strings.Builder
	quoted := func(from int, label string) string {
		return "'" + awkward(from, 4).Draw(t, label) + "'"
	}
	for range rapid.IntRange(1, 5).Draw(t, "descriptors") {
		fmt.Fprintf(&text, "%s- key: %s\n", indent, quoted(1, "key"))
		switch rapid.SampledFrom([]string{"", "value", "values", "regex", "cidr"}).Draw(t, "form") {
		case "value":
			fmt.Fprintf(&text, "%s  value: %s\n", indent, quoted(1, "value"))
		case "values":
			fmt.Fprintf(&text, "%s  values: [%s, %s]\n", indent, quoted(1, "value"), quoted(1, "value"))
		case "regex":
			fmt.Fprintf(&text, "%s  regex: '%s'\n", indent, rapid.SampledFrom([]string{
				"a > b", `a\.b`, "a,b", "a", ".*",
				"a{1,2}",
			}).Draw(t, "regex"))
		case "cidr":
			fmt.Fprintf(&text, "%s  cidr: [%s]\n", indent, rapid.SampledFrom([]string{
				"10.0.0.0/8", "::/0",
				"10.0.0.0/8, 11.0.0.0/8",
			}).Draw(t, "cidr"))
		}
		if rapid.Bool().Draw(t, "limits") {
			fmt.Fprintf(&text, "%s  rate_limits:\n", indent)
			for i := range rapid.IntRange(1, 4).Draw(t, "number") {
				fmt.Fprintf(&text, "%s    - {requests_per_unit: %d, %s}\n", indent, i+1, rapid.SampledFrom([]string{
					"unit: day", "unit: hour", "unit: day, align: calendar, time_zone: Europe/Berlin", "unit: day, algorithm: funnel",
					"unit: day, name: a",
				}).Draw(t, "limit"))
			}
		}
		if depth > 0 && rapid.Bool().Draw(t, "children") {
			fmt.Fprintf(&text, "%s  descriptors:\n%s", indent, drawRules(t, indent+"  ", depth-1))
		}
	}
	return text.String()
}

// Each rule has a unique path, and compiling the same files again gives an equal set.
func checkPaths(t *rapid.T) {
	files := []rulefile.File{{Name: "f", Data: []byte("domain: d\ndescriptors:\n" + drawRules(t, "", 2))}}
	set, err := rulefile.Compile(files)
	if err != nil {
		if _, ok := errors.AsType[descriptors.Errors](err); !ok {
			t.Fatal(err)
		}
		return
	}
	seen := map[string]string{}
	for _, r := range set.Domain("d").Rules() {
		if other, ok := seen[r.Path]; ok {
			t.Fatalf("%s and %s both have the path %s", other, r.Source, r.Path)
		}
		seen[r.Path] = r.Source
		if set.Domain("d").Rule(r.Path) != r {
			t.Fatalf("the path %s leads to another rule", r.Path)
		}
	}
	again, err := rulefile.Compile(files)
	if err != nil {
		t.Fatal(err)
	}
	if changes := offline.Changes(set, again); len(changes) > 0 {
		t.Fatalf("a set differs from itself: %+v\n%s", changes, files[0].Data)
	}
	for i, l := range set.Limits() {
		if limit.Identity(l.Policy) != limit.Identity(again.Limits()[i].Policy) {
			t.Fatalf("limit %d has another identity when its file is read again", i)
		}
	}
}

func TestPathsAreUnique(t *testing.T) { rapid.Check(t, checkPaths) }

func FuzzPaths(f *testing.F) { f.Fuzz(rapid.MakeFuzz(checkPaths)) }
