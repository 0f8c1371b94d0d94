package descriptors_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
)

func TestCompileNothing(t *testing.T) {
	set, err := rulefile.Compile(nil)
	if err != nil || len(set.Domains()) != 0 || len(set.Limits()) != 0 || set.Domain("x") != nil {
		t.Errorf("Compile(nil) is %v, %v", set, err)
	}
}

func TestDeepNesting(t *testing.T) {
	flow := "domain: d\ndescriptors: " + strings.Repeat("[", 9000) + strings.Repeat("]", 9000)
	deep := "domain: d\ndescriptors:" + strings.Repeat(" [{key: a, descriptors:", 300) + " []" + strings.Repeat("}]", 300)
	for _, tt := range []struct{ rules, want string }{
		{flow, "rules.yaml:2:15: a descriptor must be fields with values (name: value), got a list"},
		{deep, "nested more than 500 levels deep"},
	} {
		_, err := rulefile.Compile([]rulefile.File{{Name: "rules.yaml", Data: []byte(tt.rules)}})
		if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("Compile gave %v, want %s alone", err, tt.want)
		}
	}
}

// FuzzCompile compiles any text. Compile must not panic, and every error must have a position in the file.
func FuzzCompile(f *testing.F) {
	cases, err := filepath.Glob("rulefile/testdata/rules/*.txt")
	if err != nil || len(cases) == 0 {
		f.Fatal(len(cases), err)
	}
	for _, path := range cases {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		if !strings.Contains(path, "aliases") { // slow on purpose
			rules, _, _ := bytes.Cut(data, []byte("\n---- "))
			f.Add(rules)
		}
	}
	f.Add([]byte("domain: &a [*a]"))
	f.Add([]byte("\xff\xfed\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		set, err := rulefile.Compile([]rulefile.File{{Name: "f", Data: data}})
		if err == nil {
			for _, d := range set.Domains() {
				if _, err := json.Marshal(d.Rules()); err != nil {
					t.Error(err)
				}
			}
			return
		}
		var all descriptors.Errors
		if !errors.As(err, &all) || len(all) == 0 {
			t.Fatalf("error is %T %v, want Errors", err, err)
		}
		lines := 2 + bytes.Count(data, []byte("\n")) + bytes.Count(data, []byte("\r")) +
			bytes.Count(data, []byte("\u0085")) + bytes.Count(data, []byte("\u2028")) + bytes.Count(data, []byte("\u2029"))
		for _, e := range all {
			if e.File != "f" || e.Line < 1 || e.Line > lines || e.Column < 1 || e.Column > len(data)+2 || e.Msg == "" {
				t.Errorf("%q leads nowhere in %d lines", e, lines)
			}
		}
	})
}

// manyRules is a domain of n rules: half have exact values, the others patterns with their own prefixes and suffixes.
func manyRules(n int) []byte {
	var b bytes.Buffer
	b.WriteString("domain: shop\ndescriptors:\n")
	for i := range n {
		value := fmt.Sprintf("value%06d", i)
		switch i % 4 {
		case 1:
			value = fmt.Sprintf("/prefix/%06d/*", i)
		case 3:
			value = fmt.Sprintf("'*.host%06d.example'", i)
		}
		fmt.Fprintf(&b, "  - key: key%d\n    value: %s\n    rate_limit:\n      unit: second\n      requests_per_unit: 10\n",
			i%2, value)
	}
	return b.Bytes()
}

func BenchmarkMatch(b *testing.B) {
	for _, n := range []int{10, 100_000} {
		set := casetest.Compile(b, string(manyRules(n)))
		for _, by := range []struct{ name, entry string }{
			{"exact", fmt.Sprintf("key0=value%06d", n-2)},
			{"prefix", fmt.Sprintf("key1=/prefix/%06d/items", n-1-(n-2)%4)},
			{"suffix", fmt.Sprintf("key1=www.host%06d.example", n-1-n%4)},
			{"none", "key1=nothing-matches-this"},
		} {
			es, shop := casetest.Entries(by.entry), set.Domain("shop")
			b.Run(fmt.Sprintf("rules=%d/by=%s", n, by.name), func(b *testing.B) {
				if found := shop.Match(es) != nil; found != (by.name != "none") {
					b.Fatalf("Match(%s) found: %v", by.entry, found)
				}
				b.ReportAllocs()
				for b.Loop() {
					shop.Match(es)
				}
			})
		}
	}
}

func BenchmarkCompile(b *testing.B) {
	const n = 100_000
	files := []rulefile.File{{Name: "rules.yaml", Data: manyRules(n)}}
	b.Run(fmt.Sprintf("rules=%d", n), func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := rulefile.Compile(files); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkAppendKey(b *testing.B) {
	set := casetest.Compile(b, keyRules)
	for _, by := range []struct{ name, entries string }{
		{"plain", "remote_address=10.0.0.1 path=/checkout/cart"},
		{"hashed", "api_key=0123456789abcdef"},
		{"long", "remote_address=" + strings.Repeat("x", 300)},
	} {
		es := casetest.Entries(by.entries)
		l := limitOf(b, set, "shop", es, 0)
		b.Run(by.name, func(b *testing.B) {
			dst := make([]byte, 0, 1024)
			b.ReportAllocs()
			for b.Loop() {
				dst = l.AppendKey(dst[:0], es)
			}
		})
	}
}

// TestRest: a process can pause at each rule, and while a file is parsed as a whole.
func TestRest(t *testing.T) {
	const rules = 2000
	for name, end := range map[string]string{"item by item": "", "as a whole": "owner: me\n"} {
		pauses := 0
		process := descriptors.Process{Rest: func() error { pauses++; return nil }}
		data := append(manyRules(rules), end...)
		if _, err := rulefile.CompileFor(process, []rulefile.File{{Name: "rules.yaml", Data: data}}); err != nil {
			t.Fatal(err)
		}
		least := rules
		if end != "" {
			least += len(data) / 1000
		}
		if pauses < least {
			t.Errorf("%s: %d calls of Rest while %d rules were compiled, want %d", name, pauses, rules, least)
		}
	}
}
