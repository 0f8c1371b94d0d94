package explain_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/offline/explain"
	"github.com/weir-ratelimit/weir/internal/test/ruletest"
)

// BenchmarkMatch explains a value that is none of n at one level.
func BenchmarkMatch(b *testing.B) {
	for _, n := range []int{100, 10_000, 100_000} {
		var rules strings.Builder
		rules.WriteString("domain: d\ndescriptors:\n")
		for i := range n {
			fmt.Fprintf(&rules, "- {key: k, value: value%06d, rate_limit: {requests_per_unit: 1, unit: second}}\n", i)
		}
		set, es := ruletest.Compile(b, rules.String()), ruletest.Entries("k=valeu000077")
		b.Run(fmt.Sprintf("rules=%d", n), func(b *testing.B) {
			for b.Loop() {
				explain.MatchDescriptor(set, "d", es)
			}
		})
	}
}
