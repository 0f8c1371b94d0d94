package admin_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/internal/admin"
	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/limitertest"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
)

func TestMain(m *testing.M) { casetest.FindLeaks(m) }

// bench is counters over rules, a memory store and a clock that stands still.
type bench struct {
	*admin.Counters
	t     *testing.T
	set   *descriptors.Set
	store *memstore.Store
}

func newBench(t *testing.T, rules string) *bench {
	t.Helper()
	set, err := rulefile.Compile([]rulefile.File{{Name: "rules.yaml", Data: []byte(rules)}})
	if err != nil {
		t.Fatal(err)
	}
	store, err := memstore.New(memstore.Options{Now: limitertest.NewClock().Now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	b := &bench{t: t, set: set, store: store, Counters: &admin.Counters{
		Rules: func() *descriptors.Set { return set }, Store: store,
		Forget: func(_ context.Context, key string) (bool, error) { return store.Reset(key), nil },
	}}
	return b
}

// use charges all limits of a descriptor n times.
func (b *bench) use(descriptor string, n int) {
	b.t.Helper()
	entries, err := descriptors.ParseEntries(descriptor)
	if err != nil {
		b.t.Fatal(err)
	}
	for range n {
		for _, l := range b.set.Domain("shop").Match(entries).Limits {
			hit := limiter.Hit{Key: string(l.AppendKey(nil, entries)), Policy: l.Policy, N: 1}
			if err := b.store.Take(b.t.Context(), []limiter.Hit{hit}, make([]limiter.Decision, 1)); err != nil {
				b.t.Fatal(err)
			}
		}
	}
}

func (b *bench) get(descriptor string) *adminapi.KeyState {
	b.t.Helper()
	s, err := b.Get(b.t.Context(), "shop", descriptor)
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

// terms are what the algorithm counts, what remains, and what becomes of one more request.
func terms(l *adminapi.KeyLimit) string {
	counted := ""
	if l.Counts != "" {
		counted = fmt.Sprintf("%s %d, ", l.Counts, l.Counted)
	}
	retry := "never"
	if l.RetryAfter != nil {
		retry = fmt.Sprintf("%g", *l.RetryAfter)
	}
	return fmt.Sprintf("%s%d left, retry %s, reset %g", counted, l.Remaining, retry, l.ResetAfter)
}

// Each algorithm has its own words, and a peek charges nothing.
func TestGet(t *testing.T) {
	for limit, want := range map[string]string{
		"requests_per_unit: 5, unit: hour":                                                    "count 3, 2 left, retry 0, reset 3600",
		"requests_per_unit: 3, unit: hour":                                                    "count 3, 0 left, retry 3600, reset 3600",
		"requests_per_unit: 0, unit: hour":                                                    "count 0, 0 left, retry never, reset 3600",
		"algorithm: funnel, requests_per_unit: 1, unit: second, burst: 4":                     "level 3, 1 left, retry 0, reset 3",
		"algorithm: funnel, requests_per_unit: 1, unit: second, burst: 3":                     "level 3, 0 left, retry 1, reset 3",
		"algorithm: token_bucket, requests_per_unit: 2, unit: second, burst: 10":              "tokens 7, 7 left, retry 0, reset 1.5",
		"algorithm: sliding_log, requests_per_unit: 4, unit: minute":                          "count 3, 1 left, retry 0, reset 60",
		"algorithm: sliding_window, requests_per_unit: 4, unit: minute":                       "count 3, 1 left, retry 0, reset 66",
		"algorithm: sliding_window, requests_per_unit: 40, unit: minute, segment_cap: 5":      "2 left, retry 0, reset 66",
		"algorithm: concurrency, requests_per_unit: 4, lease: 30s":                            "in_use 3, 1 left, retry 0, reset 30",
		"algorithm: leaky_queue, requests_per_unit: 1, unit: second, burst: 10, max_wait: 9s": "queued 3, 7 left, retry 0, reset 12",
		"algorithm: smooth_bursty, requests_per_unit: 5, unit: second, burst_seconds: 2":      "stored 8, 8 left, retry 0, reset 0.6",
	} {
		b := newBench(t, "domain: shop\ndescriptors: [{key: client, rate_limit: {"+limit+"}}]")
		b.use("client=ann", 3)
		for range 2 {
			if got := terms(&b.get("client=ann").Limits[0]); got != want {
				t.Errorf("%s:\n got %s\nwant %s", limit, got, want)
			}
		}
	}
}

const rules = `
domain: shop
descriptors:
- key: client
  shadow_mode: true
  rate_limits:
  - {name: hour, requests_per_unit: 5, unit: hour}
  - {name: burst, algorithm: funnel, requests_per_unit: 1, unit: second, store: hot}
  descriptors:
  - {key: secret, hash_values: true, rate_limit: {requests_per_unit: 7, window: 90s}}
- {key: free, rate_limit: {unlimited: true}}
`

// A state names its rule and its counters.
func TestStateNamesThings(t *testing.T) {
	b := newBench(t, rules)
	s, err := b.Get(t.Context(), "shop", "client=ann")
	if err != nil {
		t.Fatal(err)
	}
	for i := range s.Limits {
		s.Limits[i].ResetAt = time.Time{}
	}
	now := 0.0
	want := &adminapi.KeyState{
		Domain: "shop", Descriptor: "client=ann", Rule: "client", Source: "rules.yaml:4", Mode: "shadow",
		Limits: []adminapi.KeyLimit{
			{
				Limit: "hour", Algorithm: "fixed_window", Key: "fixed_window:hour|shop|client=ann", RequestsPerUnit: 5,
				Window: "1h", Capacity: 5,
				Counts: "count", Remaining: 5, RetryAfter: &now, ResetAfter: 3600,
			},
			{
				Limit: "burst", Algorithm: "funnel", Key: "funnel:burst|shop|client=ann", Store: "hot", RequestsPerUnit: 1,
				Window: "1s", Capacity: 1,
				Counts: "level", Remaining: 1, RetryAfter: &now,
			},
		},
	}
	if diff := cmp.Diff(want, s); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if s := b.get("free=x"); !s.Unlimited || len(s.Limits) != 0 {
		t.Errorf("%+v, want unlimited", s)
	}
	if s := b.get("client=ann,secret=hunter2"); strings.Contains(s.Limits[0].Key, "hunter2") {
		t.Errorf("the key %s has a value that is to be hashed", s.Limits[0].Key)
	}
}

// A reset forgets all counters of the descriptor, and no other.
func TestReset(t *testing.T) {
	b := newBench(t, rules)
	left := func(who string) (all []int64) {
		for _, l := range b.get("client=" + who).Limits {
			all = append(all, l.Remaining)
		}
		return all
	}
	b.use("client=ann", 1)
	b.use("client=bob", 1)
	done, err := b.Reset(t.Context(), adminapi.ResetRequest{Domain: "shop", Descriptor: "client=ann"})
	want := []adminapi.ResetCounter{
		{Key: "fixed_window:hour|shop|client=ann", Existed: true},
		{Key: "funnel:burst|shop|client=ann", Existed: true},
	}
	if err != nil || !cmp.Equal(done.Counters, want) || done.Rule != "client" || done.Domain != "shop" {
		t.Errorf("%+v, %v", done, err)
	}
	if ann, bob := left("ann"), left("bob"); !cmp.Equal(ann, []int64{5, 1}) || !cmp.Equal(bob, []int64{4, 0}) {
		t.Errorf("%v remain of ann, %v of bob", ann, bob)
	}
}

// If the store fails, the result shows the counters that were reset before, and the attempted ones.
func TestResetThatFails(t *testing.T) {
	b := newBench(t, rules)
	b.Forget = func(_ context.Context, key string) (bool, error) {
		if strings.HasPrefix(key, "funnel") {
			return false, limiter.ErrUnavailable
		}
		return true, nil
	}
	done, err := b.Reset(t.Context(), adminapi.ResetRequest{Domain: "shop", Descriptor: "client=ann"})
	if !errors.Is(err, limiter.ErrUnavailable) || len(done.Counters) != 1 || len(done.Tried) != 2 {
		t.Errorf("%+v, %v", done, err)
	}
}
