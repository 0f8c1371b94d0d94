package decide_test

import (
	"testing"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
)

// An answered request counts as in flight. An abandoned or denied request does not, not even for a limit that charges
// it independently. Hits in flight are released once.
func TestHeldPlaces(t *testing.T) {
	set := casetest.Compile(t, `
domain: shop
descriptors:
  - {key: tried, shadow_mode: true, rate_limit: {algorithm: concurrency, requests_per_unit: 10, lease: 1h}}
  - {key: quota, quota_mode: true, rate_limit: {algorithm: concurrency, requests_per_unit: 10, lease: 1h}}
  - {key: ban, rate_limit: {requests_per_unit: 0, unit: hour}}
`)
	d := newDecider(t, set)
	ask := func(keys ...string) *decide.Verdict {
		t.Helper()
		v, err := decided(t.Context(), d, request(d, keys...))
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	inUse := func() (places int64) {
		v, err := d.Peek(t.Context(), set, request(d, "tried", "quota"))
		if err != nil {
			t.Fatal(err)
		}
		for _, decision := range v.Decisions {
			places += 10 - decision.Remaining
		}
		return places
	}
	runs := ask("tried")
	held := runs.TakeHeld()
	held.Keep()
	held.Release(t.Context())
	if inUse() != 1 {
		t.Errorf("a request that was answered: %d places are in use, want its own", inUse())
	}
	for _, key := range []string{"tried", "quota"} {
		left := ask(key).TakeHeld()
		for range 2 { // once
			if left.Release(t.Context()); inUse() != 1 {
				t.Errorf("a request for %s that has gone: %d places are in use, want the 1 of others", key, inUse())
			}
		}
	}
	denied := ask("tried", "ban")
	lost := denied.TakeHeld()
	lost.Keep()
	if lost.Release(t.Context()); !denied.Denied || inUse() != 1 {
		t.Errorf("denied is %t, %d places are in use, want the 1 of others", denied.Denied, inUse())
	}
}
