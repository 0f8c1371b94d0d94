package topkeys

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
)

const shop = `
domain: shop
descriptors:
- {key: user, rate_limit: {requests_per_unit: 10, unit: minute}}
- {key: path, rate_limit: {requests_per_unit: 10, unit: minute}}
`

// newTop counts keys of rules of the domain shop, which it returns, too.
func newTop(tb testing.TB, perRule int, text string) (*Top, []*descriptors.Rule) {
	tb.Helper()
	top, set := New(Options{PerRule: perRule}), casetest.Compile(tb, text)
	top.Keep(set)
	return top, set.Domain("shop").Rules()
}

// hit notes a request as Watch does.
func hit(t *Top, r *descriptors.Rule, value string, n uint64, denied bool) {
	s := t.stripe()
	s.mu.Lock()
	t.note(s, r.Limits[0], fmt.Sprintf("fixed_window|shop|%s=%s", r.Path, value), n, denied)
	s.mu.Unlock()
	t.pool.Put(s)
}

func keys(tb testing.TB, top *Top, q Query) []adminapi.TopKey {
	tb.Helper()
	a, err := top.Keys(q)
	if err != nil {
		tb.Fatal(err)
	}
	return a.Keys
}

func TestKeysOfRules(t *testing.T) {
	top, rules := newTop(t, 10, shop)
	user, path := rules[0], rules[1]
	hit(top, user, "ann", 5, false)
	hit(top, user, "ann", 3, true)
	hit(top, user, "bob", 2, true)
	hit(top, path, "/", 4, true)

	ann := adminapi.TopKey{
		Domain: "shop", Rule: "user", Descriptor: "user=ann", Entries: []descriptors.Entry{{Key: "user", Value: "ann"}},
		Counter: "fixed_window|shop|user=ann", Hits: 8, Denied: 3, Share: 0.8,
	}
	bob := adminapi.TopKey{
		Domain: "shop", Rule: "user", Descriptor: "user=bob", Entries: []descriptors.Entry{{Key: "user", Value: "bob"}},
		Counter: "fixed_window|shop|user=bob", Hits: 2, Denied: 2, Share: 0.2,
	}
	root := adminapi.TopKey{
		Domain: "shop", Rule: "path", Descriptor: "path=/", Entries: []descriptors.Entry{{Key: "path", Value: "/"}},
		Counter: "fixed_window|shop|path=/", Hits: 4, Denied: 4, Share: 1,
	}
	denied := func(k adminapi.TopKey, share float64) adminapi.TopKey {
		k.Share = share
		return k
	}
	for name, c := range map[string]struct {
		q    Query
		want []adminapi.TopKey
	}{
		"busiest":     {Query{By: adminapi.ByHits, N: 10}, []adminapi.TopKey{ann, root, bob}},
		"most denied": {Query{By: adminapi.ByDenied, N: 10}, []adminapi.TopKey{root, denied(ann, 0.6), denied(bob, 0.4)}},
		"the first":   {Query{By: adminapi.ByHits, N: 1}, []adminapi.TopKey{ann}},
		"of one rule": {Query{Domain: "shop", Rule: "path", By: adminapi.ByHits, N: 10}, []adminapi.TopKey{root}},
		"of no rule":  {Query{Domain: "api", By: adminapi.ByHits, N: 10}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, keys(t, top, c.q), cmpopts.EquateEmpty()); diff != "" {
				t.Error(diff)
			}
		})
	}
	if _, err := top.Keys(Query{By: "name"}); err == nil || err.Error() != "by: must be hits or denied" {
		t.Errorf("by name: %v", err)
	}
}

// Values can be hidden; what the rules hash already stays as it is, so that it is found in counters' names.
func TestHashedValues(t *testing.T) {
	top, rules := newTop(t, 10, shop)
	hit(top, rules[0], "hunter2", 2, false)
	hit(top, rules[0], "#f52fbd32b2b3b86ff88ef6c490628285", 1, false)
	got := keys(t, top, Query{By: adminapi.ByHits, N: 10, HashValues: true})
	for _, k := range got {
		if k.Descriptor != "user=#f52fbd32b2b3b86ff88ef6c490628285" || k.Counter != "" { // echo -n hunter2 | sha256sum
			t.Errorf("shown: %+v", k)
		}
	}
	if len(got) != 2 {
		t.Errorf("%d keys, want 2", len(got))
	}
}

// What is shown is of this minute and the one before.
func TestWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		top, rules := newTop(t, 10, shop)
		start := time.Now()
		go top.Run(t.Context())
		synctest.Wait()
		now := func() string {
			a, err := top.Keys(Query{By: adminapi.ByHits, N: 10})
			if err != nil {
				t.Fatal(err)
			}
			texts := []string{fmt.Sprint(a.Since.Sub(start))}
			for _, k := range a.Keys {
				texts = append(texts, fmt.Sprintf("%s:%d", k.Descriptor, k.Hits))
			}
			return strings.Join(texts, " ")
		}
		for minute, want := range []string{
			"0s user=ann:1", "0s user=ann:11 user=bob:1", "1m0s user=ann:110 user=bob:11",
			"2m0s user=bob:110 user=ann:100", "3m0s user=bob:100", "4m0s",
		} {
			switch minute {
			case 0:
				hit(top, rules[0], "ann", 1, false)
			case 1:
				hit(top, rules[0], "ann", 10, false)
				hit(top, rules[0], "bob", 1, false)
			case 2:
				hit(top, rules[0], "ann", 100, false)
				hit(top, rules[0], "bob", 10, false)
			case 3:
				hit(top, rules[0], "bob", 100, false)
			}
			if got := now(); got != want {
				t.Errorf("minute %d: %s, want %s", minute, got, want)
			}
			time.Sleep(Half)
			synctest.Wait()
		}
		synctest.Wait()
		if top.free.Load() != maxCounters {
			t.Errorf("%d free counters of %d after an idle time", top.free.Load(), maxCounters)
		}
	})
}

// Keys stay over a reload, as long as their rule is there.
func TestKeep(t *testing.T) {
	top, rules := newTop(t, 10, shop)
	hit(top, rules[0], "ann", 1, false)
	hit(top, rules[1], "/", 1, true)
	top.rotate(time.Now())
	edited := strings.ReplaceAll(strings.ReplaceAll(shop, "key: path", "key: route"), ": 10", ": 20")
	top.Keep(casetest.Compile(t, edited))
	got := keys(t, top, Query{By: adminapi.ByHits, N: 10})
	if len(got) != 1 || got[0].Descriptor != "user=ann" {
		t.Errorf("left: %+v", got)
	}
	if free := top.free.Load(); free != maxCounters-halfCost-1 {
		t.Errorf("%d counters are free, want all but %d", free, halfCost+1)
	}
	hit(top, rules[1], "/", 1, false) // by the set before
	top.countAll()
	if top.missed.Load() != 1 || top.free.Load() != maxCounters-halfCost-1 {
		t.Error("a rule that is gone takes a counter, which nobody gives back")
	}
	again := casetest.Compile(t, edited)
	top.Keep(again)
	hit(top, again.Domain("shop").Rules()[0], "ann", 2, false)
	if got := keys(t, top, Query{By: adminapi.ByHits, N: 10}); len(got) != 1 || got[0].Hits != 3 {
		t.Errorf("after the reload: %+v", got)
	}
}

// Whatever comes in two halves: no count is too small, none too large by more than its error, in hits and in denials,
// and who has more than one k-th is shown.
func TestKeysBoundEveryCount(t *testing.T) {
	set := casetest.Compile(t, shop)
	rules := set.Domain("shop").Rules()
	rapid.Check(t, func(t *rapid.T) {
		k := rapid.IntRange(1, 8).Draw(t, "k")
		top := New(Options{PerRule: k})
		top.Keep(set)
		truth := map[adminapi.TopBy]map[string]uint64{adminapi.ByHits: {}, adminapi.ByDenied: {}}
		total := map[adminapi.TopBy]uint64{}
		value := rapid.StringMatching("[a-z]")
		for range rapid.IntRange(1, 2).Draw(t, "halves") {
			top.rotate(time.Now())
			for range rapid.IntRange(0, 100).Draw(t, "requests") {
				v, n := value.Draw(t, "value"), rapid.Uint64Range(1, 3).Draw(t, "n")
				denied := rapid.Bool().Draw(t, "denied")
				hit(top, rules[0], v, n, denied)
				truth[adminapi.ByHits][v] += n
				total[adminapi.ByHits] += n
				if denied {
					truth[adminapi.ByDenied][v] += n
					total[adminapi.ByDenied] += n
				}
			}
		}
		for by := range truth {
			a, err := top.Keys(Query{By: by, N: 1000})
			if err != nil {
				t.Fatal(err)
			}
			shown := map[string]bool{}
			for _, key := range a.Keys {
				v := key.Entries[0].Value
				shown[v] = true
				for what, e := range map[adminapi.TopBy]Estimate{
					adminapi.ByHits:   {key.Hits, key.HitsError},
					adminapi.ByDenied: {key.Denied, key.DeniedError},
				} {
					if n := truth[what][v]; n > e.Count || n < e.Count-e.Error {
						t.Errorf("%s of %s: %d, but between %d-%d and %d is said", what, v, n, e.Count, e.Error, e.Count)
					}
				}
			}
			for v, n := range truth[by] {
				if n > total[by]/uint64(k) && !shown[v] {
					t.Errorf("%s has %d of %d %s and is not shown with %d for each rule", v, n, total[by], by, k)
				}
			}
		}
	})
}

// Rules that have not been asked cost nothing; when counters run short, rules that come late still get some.
func TestLateRulesGetCounters(t *testing.T) {
	top, rules := newTop(t, 1000, rulesFile(150))
	if top.free.Load() != maxCounters {
		t.Fatal("something is taken from the beginning")
	}
	for _, r := range rules[:149] {
		for i := range 1000 {
			hit(top, r, strconv.Itoa(i), 1, false)
		}
	}
	for i := range 10 {
		hit(top, rules[149], strconv.Itoa(i), uint64(1+i), false)
	}
	got := keys(t, top, Query{Rule: rules[149].Path, By: adminapi.ByHits, N: 1})
	if len(got) != 1 || got[0].Hits != 10 || got[0].HitsError != 0 {
		t.Errorf("of the last rule: %+v; want its busiest key, exactly", got)
	}
	if free := top.free.Load(); free <= 0 || free > maxCounters/2 {
		t.Errorf("%d counters are free: this test no longer makes them scarce", free)
	}
}

// A rule for which there was no room is counted when there is some again.
func TestRulesWithoutRoomAreCountedLater(t *testing.T) {
	top, rules := newTop(t, 10, shop)
	top.free.Store(0)
	hit(top, rules[0], "ann", 6, false)
	if got, missed := keys(t, top, Query{By: adminapi.ByHits, N: 10}), top.missed.Load(); len(got) != 0 || missed != 6 {
		t.Errorf("without room: %d keys, %d hits missed, want 0 and 6", len(got), missed)
	}
	top.free.Store(maxCounters)
	hit(top, rules[0], "ann", 2, false)
	got := keys(t, top, Query{By: adminapi.ByHits, N: 10})
	if missed := top.missed.Load(); len(got) != 1 || got[0].Hits != 2 || missed != 6 {
		t.Errorf("with room: %+v, %d hits missed; want 2 hits counted and 6 missed", got, missed)
	}
}

// What a hit costs where many rules are asked at random, and other work takes the CPU's caches between the batches.
// The median of the batches is little changed by other programs.
func BenchmarkManyRules(b *testing.B) {
	for _, bm := range []struct{ rules, keys uint64 }{
		{10, 100}, {10, 100_000}, {1000, 10}, {1000, 100}, {1000, 1000}, {100_000, 1},
	} {
		b.Run(fmt.Sprintf("%d rules of %d keys", bm.rules, bm.keys), func(b *testing.B) {
			set := casetest.Compile(b, rulesFile(int(bm.rules)))
			top := New(Options{PerRule: 100})
			top.Keep(set)
			key := []byte("funnel|shop|customer=user0001,remote_address=10.20.30.4")
			hit := func(s *stripe, rule, value uint64) {
				binary.LittleEndian.PutUint64(key[len(key)-8:], value)
				top.note(s, set.Limits()[rule], unsafe.String(&key[0], len(key)), 1, false)
			}
			s := top.stripe()
			for value := range min(bm.keys, 200) {
				for rule := range bm.rules {
					hit(s, rule, value)
				}
			}
			top.count(s)
			others := bytes.Repeat([]byte{1}, 4<<20)
			runtime.GC()
			var took []time.Duration
			for b.Loop() {
				for range batch - 1 {
					hit(s, rand.Uint64N(bm.rules), rand.Uint64N(bm.keys))
				}
				for i := 0; i < len(others); i += 64 {
					others[i]++
				}
				start := time.Now()
				top.count(s)
				took = append(took, time.Since(start))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2])/(batch-1), "median-ns/hit")
		})
	}
}

// rulesFile has n rules.
func rulesFile(n int) string {
	var text strings.Builder
	text.WriteString("domain: shop\ndescriptors:\n")
	for i := range n {
		fmt.Fprintf(&text, "- {key: customer, value: user%d, rate_limit: {requests_per_unit: 10, unit: minute}}\n", i)
	}
	return text.String()
}

// Keys that Envoys decided by quotas count as those of requests.
func TestAdd(t *testing.T) {
	top, rules := newTop(t, 10, shop)
	r := rules[0]
	hit(top, r, "ann", 2, false)
	top.Add(r.Limits[0], "fixed_window|shop|user=ann", 40, false)
	top.Add(r.Limits[0], "fixed_window|shop|user=ann", 7, true)
	got, err := top.Keys(Query{By: adminapi.ByDenied, N: 5})
	if err != nil || len(got.Keys) != 1 || got.Keys[0].Hits != 49 || got.Keys[0].Denied != 7 {
		t.Errorf("%+v, %v", got.Keys, err)
	}
}
