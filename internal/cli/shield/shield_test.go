package shield

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/offline"
	"github.com/weir-ratelimit/weir/internal/test/longtest"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/descriptors/rulefile"
)

func TestMain(m *testing.M) { longtest.Main(m, 300) }

type fataler interface{ Fatal(...any) }

func compiled(t fataler, text string) *descriptors.Set {
	set, err := rulefile.Compile([]rulefile.File{{Name: "r.yaml", Data: []byte(text)}})
	if err != nil {
		t.Fatal(text, err)
	}
	return set
}

func shieldOf(t fataler, text string) *Shield {
	set := compiled(t, text)
	s, err := Of(set, set.Domain("d"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestYAMLOfLongWindows: Envoy reads no exponent in a duration.
func TestYAMLOfLongWindows(t *testing.T) {
	s := shieldOf(t, "domain: d\ndescriptors: [{key: k, rate_limit: {requests_per_unit: 5, unit: year}}]\n")
	text, err := s.YAML("d", "")
	if err != nil || !strings.Contains(string(text), "fill_interval: 31536000s}") {
		t.Errorf("%v, want fill_interval: 31536000s\n%s", err, text)
	}
}

// TestTooManyValues has 1,001 values of one key, which have no descriptors, and 20,000 combinations of two keys.
func TestTooManyValues(t *testing.T) {
	list := func(n int) string {
		var values []string
		for i := range n {
			values = append(values, fmt.Sprintf("v%d", i))
		}
		return strings.Join(values, ", ")
	}
	limit := "rate_limit: {requests_per_unit: 1, unit: second}"
	s := shieldOf(t, "domain: d\ndescriptors: [{key: k, "+limit+"}, {key: k, values: ["+list(1001)+"], "+limit+"}]\n")
	if len(s.Descriptors) != 1 || len(s.LeftOut) != 1 || s.LeftOut[0].Why != "its key has more than 1,000 values" {
		t.Errorf("%d descriptors, left out %+v", len(s.Descriptors), s.LeftOut)
	}
	set := compiled(t, "domain: d\ndescriptors: [{key: k, values: ["+list(1000)+"], descriptors: [{key: k, values: ["+
		list(20)+"], "+limit+"}]}]\n")
	want := "the rules name 21000 combinations of values"
	if _, err := Of(set, set.Domain("d")); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}

// TestOf shows which descriptors rules become.
func TestOf(t *testing.T) {
	const limit = "{requests_per_unit: 10, unit: second}"
	cases := []struct {
		name, rules string
		want        []string
		leftOut     []string
	}{
		{
			name:  "a key alone, and whole values of it",
			rules: "{key: k, rate_limit: " + limit + "}, {key: k, value: big, rate_limit: {requests_per_unit: 100, unit: minute}}",
			want:  []string{"k= 20/20 per 1s", "k=big 200/200 per 1m0s"},
		},
		{
			name: "the limit that stops a flood first",
			rules: `{key: k, rate_limits: [{name: a, algorithm: funnel, requests_per_unit: 60, unit: minute, burst: 20},
				{name: b, requests_per_unit: 10000, unit: day}]}`,
			want: []string{"k= 80/80 per 1m0s"},
		},
		{
			name:    "a pattern needs the key alone to be loose enough",
			rules:   "{key: k, rate_limit: " + limit + "}, {key: k, value: a*, rate_limit: {requests_per_unit: 40, unit: second}}",
			want:    []string{"k= 80/80 per 1s"},
			leftOut: []string{"k=a*: it matches values by a pattern, regex or block of addresses"},
		},
		{
			name:  "an unlimited block of addresses",
			rules: "{key: k, rate_limit: " + limit + "}, {key: k, cidr: [10.0.0.0/8], rate_limit: {unlimited: true}}",
			leftOut: []string{
				"k: it shares its key with rules that admit more, and by patterns",
			},
		},
		{
			name:  "an unlimited value",
			rules: "{key: k, rate_limit: " + limit + "}, {key: k, value: free, rate_limit: {unlimited: true}}",
			want:  []string{"k= 20/20 per 1s", "k=free unlimited"},
		},
		{
			name: "two levels, of which a value has no second",
			rules: "{key: k, descriptors: [{key: j, rate_limit: " + limit + "}]}, " +
				"{key: k, value: x, rate_limit: {requests_per_unit: 1, unit: second}}",
			want:    []string{"k=x 2/2 per 1s"},
			leftOut: []string{"k > j: it shares its key with rules that admit more, and by patterns"},
		},
		{
			name: "windows that are no multiple of 50 ms",
			rules: "{key: k, rate_limit: {algorithm: token_bucket, requests_per_unit: 3, window: 75ms, burst: 3}}, " +
				"{key: j, rate_limit: {requests_per_unit: 3, window: 10ms, algorithm: sliding_log}}",
			want: []string{"j= 3/15 per 50ms", "k= 6/12 per 150ms"},
		},
		{
			name: "shadow, in flight, replaced, nothing allowed",
			rules: "{key: a, shadow_mode: true, rate_limit: " + limit + "}, " +
				"{key: b, rate_limit: {algorithm: concurrency, requests_per_unit: 3, lease: 1m}}, " +
				"{key: c, rate_limit: {name: old, requests_per_unit: 10, unit: second}}, " +
				"{key: e, rate_limit: {name: new, requests_per_unit: 10, unit: second, replaces: [{name: old}]}}",
			want: []string{"e= 20/20 per 1s"},
			leftOut: []string{
				"a: shadow_mode or quota_mode: it denies nothing", "b: it limits requests in flight, not a rate",
				"c: another rule replaces its limit",
			},
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := shieldOf(t, "domain: d\ndescriptors: ["+c.rules+"]\n")
			var got, leftOut []string
			for _, d := range s.Descriptors {
				got = append(got, shown(d))
			}
			for _, l := range s.LeftOut {
				leftOut = append(leftOut, l.Rule.Path+": "+l.Why)
			}
			if !slices.Equal(got, c.want) || !slices.Equal(leftOut, c.leftOut) {
				t.Errorf("descriptors\n%q, want\n%q\nleft out\n%q, want\n%q", got, c.want, leftOut, c.leftOut)
			}
		})
	}
}

func shown(d Descriptor) string {
	text := descriptors.FormatEntries(d.Entries)
	if !d.Bucket.isLimiting() {
		return text + " unlimited"
	}
	return fmt.Sprintf("%s %d/%d per %s", text, d.Bucket.Max, d.Bucket.Fill, d.Bucket.Interval)
}

// TestDeniesNothingThatWeirAdmits sends what Weir admits through Envoy's token buckets, for random rules and traffic.
func TestDeniesNothingThatWeirAdmits(t *testing.T) {
	held := 0
	rapid.Check(t, func(t *rapid.T) {
		text := "domain: d\ndescriptors:" + drawRules(t, "  ", 2)
		set, s := compiled(t, text), shieldOf(t, text)
		held += len(s.Descriptors)
		engine, err := offline.NewEngine(set)
		if err != nil {
			t.Fatal(err)
		}
		defer engine.Close()
		envoy := &envoyBuckets{shield: s, level: map[string]level{}}
		now := time.Unix(1_700_000_000, 0).UnixMicro()
		for range rapid.IntRange(1, 300).Draw(t, "requests") {
			now += rapid.Int64Range(0, 1<<rapid.IntRange(0, 22).Draw(t, "scale")).Draw(t, "pause")
			entries := drawEntries(t)
			v, err := engine.Decide(t.Context(), &offline.Request{
				At: now, Domain: "d", Times: 1,
				Descriptors: []decide.Descriptor{{Entries: entries, Cost: 1}},
			})
			if err != nil {
				t.Fatal(err)
			}
			if !v.Denied && !envoy.admits(entries, now) {
				t.Fatalf("the shield denies %v, which Weir admits, by\n%s", entries, text)
			}
		}
	})
	if held == 0 {
		t.Error("no rule became a descriptor")
	}
}

var values = []string{"a", "ab", "b", "10.0.0.1"}

func drawEntries(t *rapid.T) (entries []descriptors.Entry) {
	for range rapid.IntRange(1, 2).Draw(t, "entries") {
		entries = append(entries, descriptors.Entry{
			Key: rapid.SampledFrom([]string{"k", "l"}).Draw(t, "key"), Value: rapid.SampledFrom(values).Draw(t, "value"),
		})
	}
	return entries
}

// drawRules draws the rules of one level, at most one for each way to match a key.
func drawRules(t *rapid.T, indent string, depth int) string {
	matches := []string{
		"key: k", "key: k, value: a", "key: k, value: b", "key: k, value: a*", "key: k, cidr: [10.0.0.0/8]",
		"key: l", "key: l, values: [a, b]", "key: l, regex: 'a.+'",
	}
	var b strings.Builder
	drawn := rapid.SliceOfNDistinct(rapid.SampledFrom(matches), 1, 4, rapid.ID[string]).Draw(t, "matches")
	for _, m := range drawn {
		b.WriteString("\n" + indent + "- " + strings.ReplaceAll(m, ", ", "\n  "+indent))
		limited := rapid.IntRange(0, 4).Draw(t, "limited")
		if limited > 0 {
			b.WriteString("\n  " + indent + "rate_limit: " + drawLimit(t))
		}
		if depth > 1 && (limited == 0 || rapid.Bool().Draw(t, "deeper")) {
			b.WriteString("\n  " + indent + "descriptors:" + drawRules(t, indent+"    ", depth-1))
		}
	}
	return b.String()
}

func drawLimit(t *rapid.T) string {
	n, burst := rapid.IntRange(1, 6).Draw(t, "n"), rapid.IntRange(1, 6).Draw(t, "burst")
	window := rapid.SampledFrom([]string{"10ms", "75ms", "1s", "3s"}).Draw(t, "window")
	limit := rapid.SampledFrom([]string{
		"{requests_per_unit: N, window: W}",
		"{algorithm: sliding_window, requests_per_unit: N, window: W}",
		"{algorithm: sliding_window, requests_per_unit: N, window: W, segments: 4}",
		"{algorithm: sliding_log, requests_per_unit: N, window: W}",
		"{algorithm: funnel, requests_per_unit: N, window: W, burst: B}",
		"{algorithm: token_bucket, requests_per_unit: N, window: W, burst: B}",
		"{algorithm: leaky_queue, requests_per_unit: N, window: W, burst: B}",
		"{unlimited: true}",
	}).Draw(t, "limit")
	return strings.NewReplacer("N", strconv.Itoa(n), "W", window, "B", strconv.Itoa(burst)).Replace(limit)
}

// envoyBuckets are the token buckets of Envoy's filter: those of whole values go first; of the others it may take any.
type envoyBuckets struct {
	shield *Shield
	level  map[string]level
}

type level struct {
	tokens float64
	at     int64
}

func (e *envoyBuckets) admits(entries []descriptors.Entry, now int64) bool {
	same := func(exact bool) func(Descriptor) bool {
		return func(d Descriptor) bool {
			return d.isExact() == exact && slices.EqualFunc(d.Entries, entries, func(of, is descriptors.Entry) bool {
				return of.Key == is.Key && (of.Value == "" || of.Value == is.Value)
			})
		}
	}
	if i := slices.IndexFunc(e.shield.Descriptors, same(true)); i >= 0 {
		return e.take(e.shield.Descriptors[i], entries, now)
	}
	for _, d := range e.shield.Descriptors {
		if same(false)(d) && !e.take(d, entries, now) {
			return false
		}
	}
	return true
}

func (e *envoyBuckets) take(d Descriptor, entries []descriptors.Entry, now int64) bool {
	if !d.Bucket.isLimiting() {
		return true
	}
	key := descriptors.FormatEntries(d.Entries) + "|" + descriptors.FormatEntries(entries)
	l, known := e.level[key]
	if !known {
		l = level{tokens: float64(d.Bucket.Max), at: now}
	}
	l.tokens = min(float64(d.Bucket.Max), l.tokens+float64(now-l.at)/1e6*d.Bucket.rate())
	l.at = now
	ok := l.tokens > 1-1e-6
	if ok {
		l.tokens--
	}
	e.level[key] = l
	return ok
}
