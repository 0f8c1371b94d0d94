package decide_test

import (
	"testing"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/test/ruletest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// A denied request holds no place, also of a limit that counts it by itself, whichever way it was decided. Places are
// given back once.
func TestDeniedRequestsHoldNoPlace(t *testing.T) {
	set := ruletest.Compile(t, `
domain: shop
descriptors:
  - {key: tried, shadow_mode: true, rate_limit: {algorithm: concurrency, requests_per_unit: 10, lease: 1h}}
  - {key: quota, quota_mode: true, rate_limit: {algorithm: concurrency, requests_per_unit: 10, lease: 1h}}
  - {key: ban, rate_limit: {requests_per_unit: 0, unit: hour}}
`)
	d := newDecider(t, set)
	ask := func(decided func(*decide.Request) (*decide.Verdict, error), keys ...string) *decide.Verdict {
		t.Helper()
		v, err := decided(request(d, keys...))
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	atOnce := func(r *decide.Request) (*decide.Verdict, error) { return d.Decide(t.Context(), r) }
	inUse := func() (places int64) {
		look := func(r *decide.Request) (*decide.Verdict, error) { return d.Look(t.Context(), set, r) }
		for _, decision := range ask(look, "tried", "quota").Decisions {
			places += 10 - decision.Remaining
		}
		return places
	}
	admitted, quota := ask(atOnce, "tried"), ask(atOnce, "quota")
	if err := d.GiveBackPlaces(t.Context(), quota); err != nil || inUse() != 1 {
		t.Errorf("a request within its quota that is gone: %v, %d places are in use, want the 1 of another", err, inUse())
	}
	for name, decided := range map[string]func(*decide.Request) (*decide.Verdict, error){
		"Decide": atOnce,
		"DecideRest": func(r *decide.Request) (*decide.Verdict, error) {
			if _, decided, err := d.DecideAtOnce(t.Context(), r); decided || err != nil {
				t.Errorf("decided at once: %t, %v", decided, err)
			}
			if d.DecideLater(r, limiter.Waiter(nil)) {
				t.Error("decided in a batch")
			}
			return d.DecideRest(t.Context(), r)
		},
	} {
		v := ask(decided, "tried", "ban")
		if !v.Denied || inUse() != 1 {
			t.Errorf("%s: denied is %t, %d places are in use, want the 1 of others", name, v.Denied, inUse())
		}
		if err := d.GiveBackPlaces(t.Context(), v); err != nil || inUse() != 1 {
			t.Errorf("%s: given back again: %v, %d places are in use, want the 1 of others", name, err, inUse())
		}
	}
	if err := d.GiveBackPlaces(t.Context(), admitted); err != nil || inUse() != 0 {
		t.Errorf("an admitted request that is gone: %v, %d places are in use, want none", err, inUse())
	}
}
