package descriptors_test

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/internal/descriptors"
)

// SplitPath returns the keys and values of any path.
func TestSplitPath(t *testing.T) {
	text := rapid.Map(rapid.SliceOfN(rapid.SampledFrom([]string{"a", " ", ">", `\`, "=", "ü", "*", "_"}), 1, 6),
		func(parts []string) string { return strings.Join(parts, "") })
	key := text.Filter(func(s string) bool { return !strings.Contains(s, "*") })
	rapid.Check(t, func(t *rapid.T) {
		var want [][2]string
		var root, below *descriptors.Descriptor
		for range rapid.IntRange(1, 3).Draw(t, "levels") {
			d := &descriptors.Descriptor{Key: key.Draw(t, "key")}
			level := [2]string{d.Key}
			if rapid.Bool().Draw(t, "has a value") {
				d.Value = text.Draw(t, "value")
				level[1] = "=" + d.Value
			}
			want = append(want, level)
			if root == nil {
				root = d
			} else {
				below.Descriptors = []*descriptors.Descriptor{d}
			}
			below = d
		}
		b := descriptors.NewBuilder(descriptors.Process{})
		b.Add("shop", root)
		set, err := b.Build()
		if err != nil {
			t.Fatal(err)
		}
		rules := set.Domain("shop").Rules()
		got := descriptors.SplitPath(rules[len(rules)-1].Path)
		if len(got) != len(want) {
			t.Fatalf("%q is %q, want %q", rules[len(rules)-1].Path, got, want)
		}
		for i := range want {
			if got[i] != want[i] {
				t.Fatalf("%q is %q, want %q", rules[len(rules)-1].Path, got, want)
			}
		}
	})
}
