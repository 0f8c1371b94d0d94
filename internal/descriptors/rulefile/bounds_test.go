package rulefile_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
)

// Of very many errors or warnings, the first ones are listed, with the number of the others. Time and memory do not
// grow with that number.
func TestErrorsAreBounded(t *testing.T) {
	const n = 10_000
	compile := func(item string) (*descriptors.Set, error) {
		var text strings.Builder
		text.WriteString("domain: a\ndescriptors:\n")
		for i := range n {
			fmt.Fprintf(&text, "  - {key: k%d, %s}\n", i, item)
		}
		return rulefile.Compile([]rulefile.File{{Name: "a.yaml", Data: []byte(text.String())}})
	}
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	_, err := compile("nonsense: 1")
	if held := heap() - before; held > 8<<20 {
		t.Errorf("the errors hold %d bytes", held)
	}
	if len(err.Error()) > 1<<20 {
		t.Errorf("the errors have %d bytes", len(err.Error()))
	}
	set, _ := compile("value: ^a$, rate_limit: {unit: day, requests_per_unit: 1}")
	var all descriptors.Errors
	if !errors.As(err, &all) {
		t.Fatal(err)
	}
	for what, all := range map[string]descriptors.Errors{
		"errors": all, "warnings": set.Warnings(),
	} {
		if len(all) != 1001 || all.Count() != n {
			t.Fatalf("%d %s that stand for %d, want 1001 and %d", len(all), what, all.Count(), n)
		}
		if got, want := all[1000], "and 9000 more; correct the first ones, and check again"; got.Line != 1003 || got.Msg != want {
			t.Errorf("the last of the %s is %s, want %s", what, got, want)
		}
	}
}

// Aliases, and values files that many rules name, are bounded for all files together.
func TestGrowthIsBoundedForAllFiles(t *testing.T) {
	casetest.WithoutRace(t)
	var many strings.Builder
	for i := range 900_000 {
		fmt.Fprintf(&many, "%x\n", i)
	}
	values := rulefile.File{Name: "v.txt", Data: []byte(many.String()), Included: true}
	var rules strings.Builder
	rules.WriteString("domain: v\ndescriptors:\n")
	for i := range 100 {
		fmt.Fprintf(&rules, "  - {key: k%d, values_file: v.txt}\n", i)
	}
	aliases := func(n int) string { // of 100,000 rules
		list := "[{key: a}, {key: b}, {key: c}, {key: d}, {key: e}, {key: f}, {key: g}, {key: h}, {key: i}, {key: j}]"
		for depth := range 4 {
			list = fmt.Sprintf("[{key: k0, descriptors: &x%d %s}", depth, list)
			list += strings.Repeat(fmt.Sprintf(", {key: k, descriptors: *x%d}", depth), 9) + "]"
		}
		return fmt.Sprintf("domain: d%d\ndescriptors: %s\n", n, list)
	}
	var files []rulefile.File
	for i := range 20 {
		files = append(files, rulefile.File{Name: fmt.Sprintf("%d.yaml", i), Data: []byte(aliases(i))})
	}
	var long strings.Builder
	long.WriteString("domain: d\ndescriptors:\n  - key: " + strings.Repeat("k", 30_000) + "\n    descriptors:\n")
	for i := range 10_000 {
		fmt.Fprintf(&long, "      - key: a%d\n", i)
	}
	for want, files := range map[string][]rulefile.File{
		"the names of the rules up to here take more than 128 MiB": {{Name: "long.yaml", Data: []byte(long.String())}},
		"more than 1500000 fields and values would have to be read at once": {{
			Name: "flow.yaml", Data: []byte("domain: d\ndescriptors: [" + strings.Repeat("{},", 2<<20) + "]\n"),
		}},
		"v.txt:200001:1: the values files of all rules have more than 2000000 values up to here": {
			{Name: "r.yaml", Data: []byte(rules.String())}, values,
		},
		"aliases (*name) expand to more than 1000000 values up to here, in all files": files,
	} {
		_, err := rulefile.Compile(files)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.1000v, want %s", err, want)
		}
	}
}
