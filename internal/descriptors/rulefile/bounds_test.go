package rulefile_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
)

// A file in another encoding is told so, at the first byte that shows it.
func TestEncodings(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{
			"domain: shop\ndescriptors:\n  - {key: \u00fc, value: caf\xe9}\n",
			"rules.yaml:3:24: this is not UTF-8 text, but perhaps Latin-1 or Windows-1252 (byte 0xe9); save the file as UTF-8",
		},
		{
			"\x80", "rules.yaml:1:1: this is not UTF-8 text, but perhaps Latin-1 or Windows-1252 (byte 0x80); save the file as UTF-8",
		},
	} {
		_, err := rulefile.Compile([]rulefile.File{{Name: "rules.yaml", Data: []byte(tt.text)}})
		if err == nil || err.Error() != tt.want {
			t.Errorf("Compile(%q) is\n%v, want\n%s", tt.text, err, tt.want)
		}
	}
}

// Of a file with very many errors the first ones are told, and how many more there are; those of other files, too.
// What that takes does not grow with their number.
func TestErrorsAreBounded(t *testing.T) {
	for _, begin := range []string{"domain: %s\ndescriptors:\n", "domain: %s\n# \t, which is for the other " +
		"parser\ndescriptors:\n"} {
		var text strings.Builder
		fmt.Fprintf(&text, begin, "a")
		const n = 30_000
		for i := range n {
			fmt.Fprintf(&text, "  - {key: k%d, nonsense: 1}\n", i)
		}
		files := []rulefile.File{
			{Name: "a.yaml", Data: []byte(text.String())},
			{Name: "b.yaml", Data: []byte("domain: b\ndescriptors: [{kay: x}]\n")},
		}
		runtime.GC()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := rulefile.Compile(files)
		runtime.GC()
		runtime.ReadMemStats(&after)
		var all descriptors.Errors
		if !errors.As(err, &all) || len(all) != 1002 || all.Count() != n+1 {
			t.Fatalf("%d errors that stand for %d, want 1002 and %d", len(all), all.Count(), n+1)
		}
		if got, want := all[1000].Error(), "and 29000 more in this file; mend the first ones, and check again"; !strings.HasSuffix(got, want) {
			t.Errorf("the last error of a.yaml is %s, want %s", got, want)
		}
		if got := all[1001].Error(); !strings.HasPrefix(got, "b.yaml:2:16: kay is not a field of a descriptor") {
			t.Errorf("the last error is %s, want that of b.yaml", got)
		}
		if len(err.Error()) > 1<<20 {
			t.Errorf("the errors have %d bytes", len(err.Error()))
		}
		if held := int64(after.HeapAlloc) - int64(before.HeapAlloc); held > 8<<20 {
			t.Errorf("the errors hold %d bytes", held)
		}
		runtime.KeepAlive(err)
	}
}

// Very many files with errors are bounded, too, and so are warnings and unknown stores.
func TestAllErrorsAreBounded(t *testing.T) {
	var files []rulefile.File
	for i := range 12_000 {
		files = append(files, rulefile.File{Name: fmt.Sprintf("%05d.yaml", i), Data: []byte("domain: a\n")})
	}
	_, err := rulefile.Compile(files)
	var all descriptors.Errors
	if !errors.As(err, &all) || len(all) != 10_001 || all.Count() != 12_000 {
		t.Fatalf("%d errors that stand for %d, want 10001 and 12000", len(all), all.Count())
	}
	if got, want := all[10_000].Error(), "10000.yaml:1:1: and 2000 more in this file and others; mend the first ones, and check again"; got != want {
		t.Errorf("the last error is %s, want %s", got, want)
	}

	var text strings.Builder
	text.WriteString("domain: a\ndescriptors:\n")
	for i := range 5_000 {
		fmt.Fprintf(&text, "  - {key: k%d, value: ^a$, rate_limit: {unit: day, requests_per_unit: 1, store: s}}\n", i)
	}
	set, err := rulefile.Compile([]rulefile.File{{Name: "a.yaml", Data: []byte(text.String())}})
	if err != nil {
		t.Fatal(err)
	}
	for what, all := range map[string]descriptors.Errors{
		"warnings":       set.Warnings(),
		"unknown stores": set.UnknownStores(nil),
	} {
		if len(all) != 1001 || all.Count() != 5000 {
			t.Errorf("%d %s that stand for %d, want 1001 and 5000", len(all), what, all.Count())
		}
	}
}

// A day or a week in a duration is written out, so a duration has a bound.
func TestDurationsAreBounded(t *testing.T) {
	for digits, want := range map[int]bool{90: true, 101: false} {
		text := "domain: d\ndescriptors: [{key: k, rate_limit: {requests_per_unit: 1, window: " +
			strings.Repeat("0", digits) + "1d}}]\n"
		_, err := rulefile.Compile([]rulefile.File{{Name: "rules.yaml", Data: []byte(text)}})
		if (err == nil) != want || err != nil && !strings.Contains(err.Error(), "is not a duration: write it like 90s") {
			t.Errorf("a window of %d digits: %v", digits, err)
		}
	}
}

// What small files grow to is bounded for all files together: by aliases, and by a values file that many rules name.
func TestGrowthIsBoundedForAllFiles(t *testing.T) {
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
		"the keys and values up to here take more than 128 MiB": {{Name: "long.yaml", Data: []byte(long.String())}},
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
