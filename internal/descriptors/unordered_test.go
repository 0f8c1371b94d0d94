package descriptors_test

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/internal/descriptors"
)

// TestUnorderedAgreesWithMatch compares MatchUnordered with Match of every order of the entries.
func TestUnorderedAgreesWithMatch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		set, top := drawSet(t)
		d := set.Domain("d")
		for range 20 {
			es, _ := drawEntries(t, top)
			byKey := func(a, b descriptors.Entry) int { return strings.Compare(a.Key, b.Key) }
			slices.SortFunc(es, byKey)
			es = slices.CompactFunc(es, func(a, b descriptors.Entry) bool { return a.Key == b.Key })
			reached, isLimited := map[*descriptors.Rule]bool{nil: len(es) == 0}, false
			permute(slices.Clone(es), 0, func(order []descriptors.Entry) {
				r := d.Match(order)
				reached[r] = true
				isLimited = isLimited || r != nil && len(r.Limits) > 0
			})
			ordered, r := d.MatchUnordered(es)
			isWrong := r == nil && len(reached) > 1 ||
				r != nil && (d.Match(ordered) != r || isLimited != (len(r.Limits) > 0))
			if isWrong || !reached[r] {
				t.Fatalf("%v reaches %v as %v, want one of %v", es, r, ordered, reached)
			}
		}
	})
}

// permute calls do with every order of the entries.
func permute(entries []descriptors.Entry, from int, do func([]descriptors.Entry)) {
	if from == len(entries) {
		do(entries)
	}
	for i := from; i < len(entries); i++ {
		entries[from], entries[i] = entries[i], entries[from]
		permute(entries, from+1, do)
		entries[from], entries[i] = entries[i], entries[from]
	}
}
