package descriptors_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
)

func BenchmarkLongValues(b *testing.B) {
	many := func(n int, line string) string {
		var rules strings.Builder
		rules.WriteString("domain: d\ndescriptors:\n")
		for i := range n {
			fmt.Fprintf(&rules, line+"\n", i)
		}
		return rules.String()
	}
	for _, rules := range []struct{ name, text string }{
		{"regexes_alike", many(35, "  - {key: k, regex: '.*[/-]res%d[/-].*x'}")},
		{"pattern_pieces", many(10_000, "  - {key: k, value: '/users/*/r%d/*'}")},
		{"pattern_pieces_2", many(10_000, "  - {key: k, value: '/users/*/x/*/r%d/*'}")},
		{"pattern_tails", many(10_000, "  - {key: k, value: '/users/*/x/*/r%d'}")},
		{"pattern_pairs", many(10_000, "  - {key: k, value: '*/a%[1]d/*/b%[1]d/*'}")},
	} {
		d := compile(b, rules.text).Domain("d")
		for _, fill := range []struct{ name, text string }{
			{"short", ""},
			{"ascii", "/abc-res"}, {"pieces", "/r1/r2/r3/x/r9999/r88/b77/a"}, {"words", "/é-ü"},
		} {
			for _, size := range []int{descriptors.MaxPatternValue - 8, 64<<10 - 8} {
				value := "/users/"
				if fill.text == "" {
					value += "me/r9998/x"
					if size > 10000 {
						continue
					}
				} else {
					value += strings.Repeat(fill.text, (size-10)/len(fill.text))
				}
				es := []descriptors.Entry{{Key: "k", Value: value}}
				b.Run(fmt.Sprintf("rules=%s/value=%s/bytes=%d", rules.name, fill.name, len(value)), func(b *testing.B) {
					b.ReportAllocs()
					for b.Loop() {
						d.Match(es)
					}
				})
			}
		}
	}
}
