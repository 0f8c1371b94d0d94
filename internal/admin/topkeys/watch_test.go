package topkeys

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
)

// Each descriptor of a request counts once for any number of limits: with its cost, and as denied if one of its limits
// does not fit, in any mode. Costs of 0 and below, and descriptors without a limit, do not count.
func TestWatch(t *testing.T) {
	top := New(Options{PerRule: 10})
	set := casetest.Compile(t, `
domain: shop
descriptors:
  - key: user
    rate_limits:
      - {name: short, requests_per_unit: 100, unit: hour}
      - {name: long, requests_per_unit: 4, unit: day}
  - {key: path, shadow_mode: true, rate_limit: {requests_per_unit: 1, unit: hour}}
  - {key: plain}
`)
	top.Keep(set)
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	d, err := decide.New(decide.Options{
		Rules: func() *descriptors.Set { return set }, Store: store, Watchers: []decide.Watcher{top},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, ask := range []struct {
		cost  int64
		texts []string
	}{
		{1, []string{"user=ann", "path=/a", "plain=x", "none=y"}}, // all fits
		{1, []string{"user=ann", "path=/a"}},                      // path does not, which is only shadow
		{3, []string{"user=bob"}},                                 // fits
		{2, []string{"user=bob"}},                                 // does not: of 4 a day, 3 are used
		{0, []string{"user=bob"}},
		{-3, []string{"user=bob"}},
		{1, []string{"user=bob", "path=/b"}},
	} {
		r := d.NewRequest()
		r.Domain = "shop"
		for _, text := range ask.texts {
			entries, err := descriptors.ParseEntries(text)
			if err != nil {
				t.Fatal(err)
			}
			r.Add(decide.Descriptor{Cost: ask.cost, Entries: entries})
		}
		if d.Decide(r); r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	var got []string
	for _, k := range keys(t, top, Query{By: adminapi.ByHits, N: 10}) {
		got = append(got, fmt.Sprintf("%s %d %d", k.Descriptor, k.Hits, k.Denied))
	}
	want := "user=bob 6 2; user=ann 2 0; path=/a 2 1; path=/b 1 0"
	if text := strings.Join(got, "; "); text != want {
		t.Errorf("key, hits, denied: %s; want %s", text, want)
	}
}
