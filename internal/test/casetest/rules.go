package casetest

import (
	"bytes"
	"cmp"
	"os"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/internal/offline/explain"
)

// Compile compiles one rule file, which must be valid.
func Compile(tb testing.TB, rules string) *descriptors.Set {
	tb.Helper()
	set, err := rulefile.Compile([]rulefile.File{{Name: "rules.yaml", Data: []byte(rules)}})
	if err != nil {
		tb.Fatalf("Compile: %v\n%s", err, rules)
	}
	return set
}

// Entries parses "key=value key=value".
func Entries(text string) (all []descriptors.Entry) {
	for part := range strings.FieldsSeq(text) {
		key, value, _ := strings.Cut(part, "=")
		all = append(all, descriptors.Entry{Key: key, Value: value})
	}
	return all
}

// Explain explains a descriptor, and checks that the result matches Match and reveals no hidden values.
func Explain(t rapid.TB, set *descriptors.Set, domain string, entries []descriptors.Entry) explain.Descriptor {
	t.Helper()
	var want *descriptors.Rule
	if d := set.Domain(domain); d != nil {
		want = d.Match(entries)
	}
	x, rule := explain.MatchDescriptor(set, domain, entries)
	last := ""
	if n := len(x.Levels); n > 0 && n == len(x.Entries) {
		last = x.Levels[n-1].Source
	}
	limited := want != nil && len(want.Limits) > 0
	switch {
	case rule != want, want == nil && last != "", want != nil && last != want.Source:
		t.Errorf("MatchDescriptor(%v) ends at %v, and its levels at %q; Match at %v", entries, rule, last, want)
	case !limited && x.Message == "":
		t.Errorf("MatchDescriptor(%v) does not say why there is no limit", entries)
	}
	return x
}

// Table returns the test cases of a YAML file, which is a list. A field that T does not have fails the test.
func Table[T any](tb testing.TB, path string) (cases []T) {
	tb.Helper()
	data, err := os.ReadFile(path)
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	if err = cmp.Or(err, d.Decode(&cases)); err != nil {
		tb.Fatalf("%s: %v", path, err)
	}
	return cases
}
