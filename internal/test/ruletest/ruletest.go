// Package ruletest has what tests with rules share.
package ruletest

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/internal/explain"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/descriptors/rulefile"
)

// Compile compiles one rule file, which must be right.
func Compile(tb testing.TB, rules string) *descriptors.Set {
	tb.Helper()
	set, err := rulefile.Compile([]rulefile.File{{Name: "rules.yaml", Data: []byte(rules)}})
	if err != nil {
		tb.Fatalf("Compile: %v\n%s", err, rules)
	}
	return set
}

// Entries reads "key=value key=value".
func Entries(text string) (all []descriptors.Entry) {
	for part := range strings.FieldsSeq(text) {
		key, value, _ := strings.Cut(part, "=")
		all = append(all, descriptors.Entry{Key: key, Value: value})
	}
	return all
}

// CheckExplained checks that an explanation says what Match does, and no more than it may.
func CheckExplained(t rapid.TB, set *descriptors.Set, x *explain.Matched) {
	t.Helper()
	var want *descriptors.Rule
	if d := set.Domain(x.Domain); d != nil {
		want = d.Match(x.Entries)
	}
	last := (*descriptors.Rule)(nil)
	if n := len(x.Levels); n > 0 && n == len(x.Entries) {
		last = x.Levels[n-1].Rule
	}
	limited := want != nil && len(want.Limits) > 0
	switch {
	case x.Rule != want || last != want:
		t.Errorf("MatchDescriptor(%v) ends at %v, and its levels at %v; Match at %v", x.Entries, x.Rule, last, want)
	case limited != (x.Reason == ""), limited != (x.Message == ""):
		t.Errorf("MatchDescriptor(%v) has the reason %q (%s), but limited is %t", x.Entries, x.Reason, x.Message, limited)
	case len(x.Near) > 6 || limited && len(x.Near) > 0:
		t.Errorf("MatchDescriptor(%v) says that %d rules are near, and limited is %t", x.Entries, len(x.Near), limited)
	}
}
