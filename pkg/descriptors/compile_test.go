package descriptors_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/internal/test/ruletest"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

func TestSet(t *testing.T) {
	set := ruletest.Compile(t, `
domain: z
descriptors:
  - {key: a, rate_limit: {requests_per_unit: 1, unit: second}}
  - key: b
    quota_mode: true
    detailed_metric: true
    value_to_metric: true
    metadata: {team: x, n: 1}
    rate_limits:
      - {name: one, requests_per_unit: 2, unit: minute, unit_multiplier: 3, on_store_failure: deny}
      - {requests_per_unit: 3, unit: hour, replaces: [{name: one}]}
  - {key: c, rate_limit: {unlimited: true}}
---
domain: a
descriptors: [{key: none}]
`)
	var names []string
	for _, d := range set.Domains() {
		names = append(names, d.Name())
	}
	if diff := cmp.Diff([]string{"a", "z"}, names); diff != "" {
		t.Errorf("Domains -want +got\n%s", diff)
	}
	if set.Domain("b") != nil {
		t.Error("Domain(b) is not nil")
	}
	for i, l := range set.Limits() {
		if l.ID != i || l.Policy.Limit() != int64(i+1) {
			t.Errorf("Limits()[%d] has ID %d and limit %d", i, l.ID, l.Policy.Limit())
		}
	}
	r := set.Domain("z").Match(ruletest.Entries("b=1"))
	if r == nil || len(r.Limits) != 2 {
		t.Fatalf("rule b is %+v", r)
	}
	if r.Domain != "z" || r.Path != "b" || r.Source != "rules.yaml:5" || r.Mode != limiter.Quota || r.Unlimited ||
		!r.DetailedMetric || !r.ValueToMetric {
		t.Errorf("rule b is %+v", r)
	}
	if diff := cmp.Diff(map[string]any{"team": "x", "n": 1.0}, r.Metadata); diff != "" {
		t.Errorf("Metadata -want +got\n%s", diff)
	}
	one := r.Limits[0]
	if one.Rule != r || one.Name != "one" || one.Unit != descriptors.Minute || one.UnitMultiplier != 3 ||
		one.OnStoreFailure != descriptors.Deny {
		t.Errorf("limit one is %+v", one)
	}
	if diff := cmp.Diff([]string{"one"}, r.Limits[1].Replaces); diff != "" {
		t.Errorf("Replaces -want +got\n%s", diff)
	}
	if c := set.Domain("z").Match(ruletest.Entries("c=1")); c == nil || !c.Unlimited || c.Limits != nil ||
		c.Metadata != nil {
		t.Errorf("rule c is %+v", c)
	}
}

func TestCompileNothing(t *testing.T) {
	set, err := rulefile.Compile(nil)
	if err != nil || len(set.Domains()) != 0 || len(set.Limits()) != 0 || set.Domain("x") != nil {
		t.Errorf("Compile(nil) is %v, %v", set, err)
	}
}

// An empty file is what a full disk leaves, or a writer who has only just begun.
func TestEmptyFileIsRefused(t *testing.T) {
	good := rulefile.File{Name: "good.yaml", Data: []byte("domain: a\ndescriptors: [{key: none}]\n---\n# the end\n")}
	for _, data := range []string{"", "\n \n", "# nothing\n---\n---\n"} {
		_, err := rulefile.Compile([]rulefile.File{{Name: "a.yaml", Data: []byte(data)}, good})
		if want := "a.yaml:1:1: this file is empty; write domain: and descriptors:, or remove the file"; err == nil ||
			err.Error() != want {
			t.Errorf("Compile(%q) is %v, want %s", data, err, want)
		}
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

// FuzzCompile throws anything at Compile: it must not panic, and every error must lead to a place in the file.
func FuzzCompile(f *testing.F) {
	cases, err := filepath.Glob("testdata/rules/*.txt")
	if err != nil {
		f.Fatal(err)
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
			if _, err := set.MarshalJSON(); err != nil {
				t.Errorf("MarshalJSON: %v", err)
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

// manyRules is a domain of n rules: half by exact value, the others by patterns with prefixes and suffixes of
// their own.
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
		set := ruletest.Compile(b, string(manyRules(n)))
		for _, by := range []struct{ name, entry string }{
			{"exact", fmt.Sprintf("key0=value%06d", n-2)},
			{"prefix", fmt.Sprintf("key1=/prefix/%06d/items", n-1-(n-2)%4)},
			{"suffix", fmt.Sprintf("key1=www.host%06d.example", n-1-n%4)},
			{"none", "key1=nothing-matches-this"},
		} {
			es, shop := ruletest.Entries(by.entry), set.Domain("shop")
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
	set := ruletest.Compile(b, keyRules)
	for _, by := range []struct{ name, entries string }{
		{"plain", "remote_address=10.0.0.1 path=/checkout/cart"},
		{"hashed", "api_key=0123456789abcdef"},
		{"long", "remote_address=" + strings.Repeat("x", 300)},
	} {
		es := ruletest.Entries(by.entries)
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

// TestWaitsWarn: whoever has requests delayed for longer than Envoy waits by itself is told, under each algorithm.
func TestWaitsWarn(t *testing.T) {
	set := ruletest.Compile(t, `
domain: d
descriptors:
  - {key: a, rate_limit: {algorithm: smooth_warming_up, requests_per_unit: 5, unit: second, max_wait: 21ms}}
  - {key: b, rate_limit: {algorithm: smooth_warming_up, requests_per_unit: 5, unit: second, max_wait: 20ms}}
  - {key: c, rate_limit: {algorithm: smooth_warming_up, requests_per_unit: 5, unit: second}}
  - {key: d, rate_limit: {algorithm: smooth_bursty, requests_per_unit: 5, unit: second, max_wait: 1s}}
`)
	const want = "requests are delayed by up to %s, but Envoy waits only 20ms unless its rate limit filter has a longer timeout; " +
		"raise that, or write a max_wait below it"
	got := set.Warnings().Error()
	if diff := cmp.Diff("rules.yaml:4:103: "+fmt.Sprintf(want, "21ms")+"\nrules.yaml:7:99: "+fmt.Sprintf(want, "1s"),
		got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// TestQueuesWarn: a max_wait that nobody reaches, since the queue is full before, is told with the burst to write.
func TestQueuesWarn(t *testing.T) {
	set := ruletest.Compile(t, `
domain: d
descriptors:
  - {key: a, rate_limit: {algorithm: leaky_queue, requests_per_unit: 10, unit: second, max_wait: 5s}}
  - {key: b, rate_limit: {algorithm: leaky_queue, requests_per_unit: 10, unit: second, max_wait: 5s, burst: 50}}
  - {key: c, rate_limit: {algorithm: leaky_queue, requests_per_unit: 10, unit: second, max_wait: 5s, burst: 49}}
  - {key: d, rate_limit: {algorithm: leaky_queue, requests_per_unit: 10, unit: second, max_wait: 1s}}
  - {key: e, rate_limit: {algorithm: leaky_queue, requests_per_unit: 3, unit: minute, max_wait: 30s, burst: 1}}
`)
	var got []string
	for _, w := range set.Warnings() {
		if w.Code == descriptors.WarnShortQueue {
			got = append(got, w.Error())
		}
	}
	want := []string{
		"rules.yaml:4:98: nobody waits for 5s: no more than burst requests wait, 10, and these are gone after 1s; write burst: 50, or a max_wait of at most 1s",
		"rules.yaml:6:98: nobody waits for 5s: no more than burst requests wait, 49, and these are gone after 4.9s; " +
			"write burst: 50, or a max_wait of at most 4.9s",
		"rules.yaml:8:97: nobody waits for 30s: no more than burst requests wait, 1, and these are gone after 20s; write burst: 2, or a max_wait of at most 20s",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// TestManyLimitsWarn: a rule with more limits than a request may ask.
func TestManyLimitsWarn(t *testing.T) {
	for n, want := range map[int]int{1024: 0, 1025: 1} {
		var rules strings.Builder
		rules.WriteString("domain: d\ndescriptors:\n- key: a\n  rate_limits:\n")
		for i := range n {
			fmt.Fprintf(&rules, "  - {name: l%d, requests_per_unit: %d, window: %ds}\n", i, i+1, i+1)
		}
		warnings := ruletest.Compile(t, rules.String()).Warnings()
		if len(warnings) != want || want > 0 && (warnings[0].Code != descriptors.WarnManyLimits || warnings[0].Line != 1029 ||
			!strings.HasPrefix(warnings[0].Msg, "this rule has 1025 limits, and a request that asks more than --max-counters "+
				"(1024) is refused")) {
			t.Errorf("%d limits: %v, want %d warnings", n, warnings, want)
		}
	}
}

// TestProcess: limits that do not say what to do while the store fails do what the process says, and local ones know
// the process's share, also those that a request brings along.
func TestProcess(t *testing.T) {
	set, err := rulefile.CompileFor(descriptors.Process{OnStoreFailure: descriptors.Deny, Replicas: 4}, []rulefile.File{{
		Name: "rules.yaml", Data: []byte(`
domain: shop
descriptors:
  - {key: silent, rate_limit: {requests_per_unit: 8, unit: minute}}
  - {key: allow, rate_limit: {requests_per_unit: 8, unit: minute, on_store_failure: allow}}
  - {key: local, rate_limit: {requests_per_unit: 8, unit: minute, on_store_failure: local}}
`),
	}})
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, l *descriptors.Limit, want descriptors.OnStoreFailure, share int64) {
		t.Helper()
		got := int64(0)
		if l.Local != nil {
			got = l.Local.Limit()
		}
		if l.OnStoreFailure != want || got != share {
			t.Errorf("%s: %s, share %d; want %s, %d", what, l.OnStoreFailure, got, want, share)
		}
	}
	d := set.Domain("shop")
	for _, tt := range []struct {
		key            string
		want           descriptors.OnStoreFailure
		share, another int64
	}{
		{"silent", descriptors.Deny, 0, 0},
		{"allow", descriptors.Allow, 0, 0},
		{"local", descriptors.Local, 2, 5},
		{"nobody", descriptors.Deny, 0, 0},
	} {
		entries := []descriptors.Entry{{Key: tt.key, Value: "a"}}
		if r := d.Match(entries); r != nil {
			check(tt.key, r.Limits[0], tt.want, tt.share)
		}
		l, err := d.Override(entries, 20, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		check(tt.key+" with a limit of the request", l, tt.want, tt.another)
	}
}

// TestRest: a process can pause at each rule, and while a file that is not read item by item is parsed.
func TestRest(t *testing.T) {
	const rules = 2000
	for name, end := range map[string]string{"item by item": "", "as a whole": "owner: me\n"} {
		pauses := 0
		process := descriptors.Process{Rest: func() { pauses++ }}
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
