package descriptors_test

import (
	_ "embed"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
)

func limitOf(tb testing.TB, set *descriptors.Set, domain string, es []descriptors.Entry, i int) *descriptors.Limit {
	tb.Helper()
	r := set.Domain(domain).Match(es)
	if r == nil || i >= len(r.Limits) {
		tb.Fatalf("no limit %d for %v", i, es)
	}
	return r.Limits[i]
}

//go:embed testdata/keys.yaml
var keyRules string

// TestKeyGolden pins the format of keys. If the format must change, all counters of all users are reset, and the
// release notes must say so.
func TestKeyGolden(t *testing.T) {
	set := casetest.Compile(t, keyRules+"---\ndomain: 'a|b %{x}'\ndescriptors: [{key: k, rate_limit: "+
		"{requests_per_unit: 1, unit: second}}]")
	long := strings.Repeat("x", 300)
	for _, tt := range []struct {
		domain, entries string
		limit           int
		want            string
	}{
		{"shop", "remote_address=10.0.0.1", 0, "funnel|shop|remote_address=10.0.0.1"},
		{"shop", "remote_address=10.0.0.1 path=/a?b=c", 0, "fixed_window|shop|remote_address=10.0.0.1|path=/a?b=c"},
		{"shop", "remote_address=", 0, "funnel|shop|remote_address="},
		{"shop", "remote_address=#*|{}%", 0, "funnel|shop|remote_address=%23%2A%7C%7B%7D%25"},
		{"shop", "remote_address=\x01\x7f\xff\xc3é世", 0, "funnel|shop|remote_address=%01%7F%FF%C3é世"},
		{"shop", "remote_address=\u009f\ufffd", 0, "funnel|shop|remote_address=%C2%9F\ufffd"},
		{"shop", "file=/a\u00a0b", 0, "sliding_log|shop|file=/a\u00a0b"},
		{"shop", "many=1", 0, "fixed_window/1000000us|shop|many=1"},
		{"shop", "many=1", 1, "fixed_window:day%401|shop|many=1"},
		{"shop", "many=1", 2, "fixed_window|shop|many=1"},
		{"shop", "ip=10.0.0.1", 0, "fixed_window|shop|ip=10.0.0.1"},
		{"shop", "ip=0:0:0:0:0:0:0:1", 0, "fixed_window|shop|ip=::1"},
		{"shop", "hip=::1", 0, "fixed_window|shop|hip=#eff8e7ca506627fe15dda5e0e512fcaa"},
		{"shop", "module=1", 0, "funnel.redis_cell|shop|module=1"},
		{"shop", "api_key=secret", 0, "token_bucket|shop|api_key=#2bb80d537b1da3e38bd30361aa855686"},
		{"shop", "remote_address=" + long[:256-len("funnel|shop|remote_address=")], 0, // the longest that is not cut
			"funnel|shop|remote_address=" + long[:256-len("funnel|shop|remote_address=")]},
		{"shop", "remote_address=" + long, 0, "funnel|shop|remote_address=" + long[:196] +
			"#7a790db31e583050c49027ab2ff1e4ac"},
		{"shop", "remote_address=" + long[:194] + "|" + long, 0, "funnel|shop|remote_address=" + long[:194] +
			"#f395e8c6b189adda92fbe7db71cc9421"},
		{"a|b %{x}", "k=v", 0, "fixed_window|a%7Cb%20%25%7Bx%7D|k=v"},
	} {
		es := entriesOf(tt.entries)
		if got := string(limitOf(t, set, tt.domain, es, tt.limit).AppendKey(nil, es)); got != tt.want {
			t.Errorf("key of %s\n got %s\nwant %s", tt.entries, got, tt.want)
		}
	}
	es := []descriptors.Entry{{Key: "file", Value: "/a b/1/c2"}, {Key: "user", Value: "u"}}
	got := string(limitOf(t, set, "shop", es, 0).AppendKey(nil, es))
	if want := "sliding_window|shop|file=/a%20b/*/c*|user=u"; got != want {
		t.Errorf("key of a shared level\n got %s\nwant %s", got, want)
	}
}

// entriesOf splits at spaces alone, so that any other character may be in a value.
func entriesOf(text string) (all []descriptors.Entry) {
	for part := range strings.SplitSeq(text, " ") {
		key, value, _ := strings.Cut(part, "=")
		all = append(all, descriptors.Entry{Key: key, Value: value})
	}
	return all
}

// TestKeyOutlivesEdits compiles the same rules with another file, order, rate, window and name.
func TestKeyOutlivesEdits(t *testing.T) {
	before := casetest.Compile(t, `
domain: d
descriptors:
  - {key: a, rate_limit: {requests_per_unit: 1, unit: second}}
  - key: b
    rate_limits:
      - {name: x, requests_per_unit: 1, unit: second}
      - {name: y, requests_per_unit: 1, unit: hour}
`)
	after := casetest.Compile(t, `
domain: other
descriptors: [{key: none}]
---
domain: d
descriptors:
  - key: b
    shadow_mode: true
    rate_limits:
      - {name: y, requests_per_unit: 7, window: 90s}
      - {name: x, requests_per_unit: 8, window: 91s, charge_denied: none}
  - {key: a, rate_limit: {name: now, requests_per_unit: 9, unit: day, replaces: [{name: x}]}}
`)
	for _, tt := range []struct {
		entries       string
		before, after int
	}{{"a=1", 0, 0}, {"b=1", 0, 1}, {"b=1", 1, 0}} {
		es := casetest.Entries(tt.entries)
		was := string(limitOf(t, before, "d", es, tt.before).AppendKey(nil, es))
		now := string(limitOf(t, after, "d", es, tt.after).AppendKey(nil, es))
		if was != now {
			t.Errorf("the key of %s was %s and is %s", tt.entries, was, now)
		}
	}
}

func TestAppendKeyAllocatesNothing(t *testing.T) {
	set := casetest.Compile(t, keyRules)
	dst := make([]byte, 0, 1024)
	for _, text := range []string{
		"remote_address=10.0.0.1", "api_key=secret",
		"remote_address=|%" + strings.Repeat("x", 300),
	} {
		es := casetest.Entries(text)
		l := limitOf(t, set, "shop", es, 0)
		if n := testing.AllocsPerRun(100, func() { l.AppendKey(dst, es) }); n != 0 {
			t.Errorf("AppendKey of %s allocates %v times, want 0", text, n)
		}
	}
}

// counted is one counter, with all that its key must distinguish.
type counted struct {
	set     *descriptors.Set
	domain  string
	entries []descriptors.Entry
	limit   int
	window  time.Duration // of an override; 0: none
	rate    uint32        // of that
}

// identity returns what distinguishes counters, with a share_threshold's pattern instead of its values.
func (c counted) identity() string {
	es := append([]descriptors.Entry(nil), c.entries...)
	if es[0].Key == "s" && strings.HasPrefix(es[0].Value, "a") {
		es[0].Value = "any value of the pattern a*"
	}
	window := c.window
	if window == time.Second {
		window = 0 // the first limit's own
	}
	return fmt.Sprintf("%q %q %d %s", c.domain, es, c.limit, window) // whatever the rate
}

func (c counted) key(t *rapid.T) string {
	r := c.set.Domain(c.domain).Match(c.entries)
	if r == nil {
		t.Fatalf("nothing matches %v", c.entries)
	}
	if c.window == 0 {
		return string(r.Limits[c.limit].AppendKey(nil, c.entries))
	}
	l, err := r.Override(c.rate, c.window)
	if err != nil {
		t.Fatal(err)
	}
	return string(l.AppendKey(nil, c.entries))
}

// keyDomains are so similar that careless keys would be equal.
const keyDomains = `
domain: '%s'
descriptors: &d
  - &k
    key: 'k'
    rate_limits: &l
      - {requests_per_unit: 1, unit: second}
      - {requests_per_unit: 2, unit: second, name: '1'}
      - {requests_per_unit: 3, unit: second}
      - {requests_per_unit: 4, unit: second, name: '2@1/1000000us'}
    descriptors:
      - {key: k, rate_limits: *l}
      - {key: 'k=', rate_limits: *l}
      - {key: 'k|k', rate_limits: *l}
  - {<<: *k, key: 'k='}
  - {<<: *k, key: 'k|k'}
  - {<<: *k, key: 's'}
  - {<<: *k, key: 's', value: 'a*', share_threshold: true}
  - {<<: *k, key: 'h', hash_values: true}
`

func TestKeysDiffer(t *testing.T) { rapid.Check(t, checkKeysDiffer()) }

func FuzzKey(f *testing.F) { f.Fuzz(rapid.MakeFuzz(checkKeysDiffer())) }

func checkKeysDiffer() func(t *rapid.T) {
	domains := []string{"d", "d|k=", "d|k=v", "d%7Ck"}
	var files []rulefile.File
	for _, d := range domains {
		files = append(files, rulefile.File{Name: d, Data: fmt.Appendf(nil, keyDomains, d)})
	}
	set, compileErr := rulefile.Compile(files)
	draw := rapid.Custom(func(t *rapid.T) counted {
		value := rapid.OneOf(
			rapid.Map(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "=", "|k=", "|", "%7C", "%", "{", "*"}), 0, 3),
				func(parts []string) string {
					return strings.Join(parts, "")
				}),
			rapid.Map(rapid.IntRange(200, 270), func(n int) string { return strings.Repeat("x", n) }),
			rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 4), func(b []byte) string { return string(b) }),
			rapid.SampledFrom([]string{"a*", "*", "#", "%2A", "#e3b0c44298fc1c149afbf4c8996fb924", ""}),
		)
		es := []descriptors.Entry{{
			Key:   rapid.SampledFrom([]string{"k", "k=", "k|k", "s", "h"}).Draw(t, "key"),
			Value: value.Draw(t, "value"),
		}}
		if rapid.Bool().Draw(t, "deeper") {
			es = append(es, descriptors.Entry{
				Key:   rapid.SampledFrom([]string{"k", "k=", "k|k"}).Draw(t, "key"),
				Value: value.Draw(t, "value"),
			})
		}
		return counted{
			set: set, domain: rapid.SampledFrom(domains).Draw(t, "domain"), entries: es,
			limit: rapid.IntRange(0, 3).Draw(t, "limit"), rate: rapid.Uint32Range(1, 3).Draw(t, "rate"),
			window: rapid.SampledFrom([]time.Duration{0, time.Second, time.Minute, 61 * time.Second}).Draw(t, "window"),
		}
	})
	return func(t *rapid.T) {
		if compileErr != nil {
			t.Fatal(compileErr)
		}
		seen, keys := map[string]string{}, map[string]string{}
		for _, c := range rapid.SliceOfN(draw, 50, 100).Draw(t, "counters") {
			if c.window > 0 {
				c.limit = 0 // an override is the first limit's
			}
			key, id := c.key(t), c.identity()
			if other, ok := seen[key]; ok && other != id {
				t.Fatalf("one key for two counters: %s\n%s\n%s", key, other, id)
			}
			if other, ok := keys[id]; ok && other != key {
				t.Fatalf("two keys for one counter: %s\n%s\n%s", id, other, key)
			}
			seen[key], keys[id] = id, key
			if len(key) > 256 || !utf8.ValidString(key) || strings.ContainsAny(key, " {}\x00\n\x7f") {
				t.Fatalf("key %q is too long or unreadable", key)
			}
		}
	}
}

// All spellings of an address have the same counter in a rule with cidr.
func TestOneCounterOfAnAddress(t *testing.T) {
	set := casetest.Compile(t, keyRules)
	keyOf := func(key, value string) string {
		es := []descriptors.Entry{{Key: key, Value: value}}
		return string(limitOf(t, set, "shop", es, 0).AppendKey(nil, es))
	}
	for _, key := range []string{"ip", "hip"} {
		for _, same := range [][]string{
			{"::1", "0:0:0:0:0:0:0:1", "0000::0001", "::0.0.0.1", "0::1%eth0", "::1%1"},
			{"2001:db8::abc", "2001:DB8::ABC", "2001:0db8:0:0::0abc", "2001:DB8::0.0.10.188"},
		} {
			for _, value := range same {
				if got, want := keyOf(key, value), keyOf(key, same[0]); got != want {
					t.Errorf("%s has the key %s, %s has %s", value, got, same[0], want)
				}
			}
		}
	}
	for _, value := range []string{"::ffff:10.0.0.1", "::FFFF:0a00:0001", "0:0:0:0:0:ffff:10.0.0.1%x"} {
		if got, want := keyOf("ip", value), keyOf("ip", "10.0.0.1"); got != want {
			t.Errorf("%s has the key %s, 10.0.0.1 has %s", value, got, want)
		}
	}
	if a, b := keyOf("ip", "::1"), keyOf("ip", "::2"); a == b {
		t.Errorf("two addresses have the key %s", a)
	}
}

// The keys of limits without a name differ by algorithm and window, so that counters survive an edit of earlier limits.
func TestUnnamedLimitsKeepTheirCounters(t *testing.T) {
	keys := func(limits string) (all []string) {
		set := casetest.Compile(t, "domain: d\ndescriptors:\n  - {key: k, "+limits+"}\n")
		es := []descriptors.Entry{{Key: "k", Value: "v"}}
		for _, l := range set.Domain("d").Match(es).Limits {
			start, _, _ := strings.Cut(string(l.AppendKey(nil, es)), "|")
			all = append(all, fmt.Sprintf("%d %s", l.Policy.Limit(), start))
		}
		return all
	}
	const day, minute, second = "{requests_per_unit: 1000, unit: day}", "{requests_per_unit: 60, unit: minute}", "{requests_per_unit: 9, unit: second}"
	const funnel = "{algorithm: funnel, requests_per_unit: 7, unit: second}"
	for _, tt := range []struct {
		limits string
		want   []string
	}{
		{"rate_limit: " + day, []string{"1000 fixed_window"}}, // the key of a single limit is as it always was
		{"rate_limits: [" + day + "]", []string{"1000 fixed_window"}},
		{"rate_limits: [" + second + ", " + day + "]", []string{"9 fixed_window/1000000us", "1000 fixed_window"}},
		{"rate_limits: [" + day + ", " + second + "]", []string{"1000 fixed_window", "9 fixed_window/1000000us"}},
		{"rate_limits: [" + minute + ", " + second + ", " + day + "]", []string{
			"60 fixed_window/60000000us", "9 fixed_window/1000000us", "1000 fixed_window",
		}},
		{"rate_limits: [" + funnel + ", " + day + "]", []string{"7 funnel", "1000 fixed_window"}},
		{
			"rate_limits: [" + day + ", {name: n, requests_per_unit: 5, unit: week}]",
			[]string{"1000 fixed_window", "5 fixed_window:n"},
		},
		{"rate_limits: [" + day + ", {requests_per_unit: 500, window: 24h, charge_denied: none}, " + second + "]", []string{
			"1000 fixed_window", "500 fixed_window#2", "9 fixed_window/1000000us",
		}},
	} {
		if got := keys(tt.limits); fmt.Sprint(got) != fmt.Sprint(tt.want) {
			t.Errorf("%s has the counters %q, want %q", tt.limits, got, tt.want)
		}
	}
}
