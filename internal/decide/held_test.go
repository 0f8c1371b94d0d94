package decide_test

import (
	"slices"
	"testing"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/panics"
	"github.com/weir-ratelimit/weir/internal/take"
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

// bug is a stage that panics for a call of this cost, before or after the store.
type bug struct {
	cost  int64
	after bool
}

func (b bug) Before(c *take.Call) bool {
	if c.Hits[0].N == b.cost && !b.after {
		panic("a bug")
	}
	return false
}

func (b bug) After(c *take.Call) {
	if c.Hits[0].N == b.cost && b.after {
		panic("a bug")
	}
}

// A request whose stage panics holds nothing afterwards. In a batch, only a panic before the store fails its request.
func TestStagePanics(t *testing.T) {
	handled := 0
	t.Cleanup(panics.Handle(func(string, any, []byte) { handled++ }))
	for name, tt := range map[string]struct {
		stage           bug
		alone, together []int64 // costs that the store takes, with those of releases
		fails           bool
	}{
		"before the store": {bug{cost: 1}, nil, []int64{0}, true},
		"after the store":  {bug{cost: 1, after: true}, []int64{1, -1}, []int64{1, 0, -1}, false},
	} {
		t.Run(name, func(t *testing.T) {
			store := &waits{}
			d := over(t, take.Of(store).Behind(tt.stage))
			check := func(how string, want []int64) {
				t.Helper()
				if !slices.Equal(store.took, want) || handled != 1 {
					t.Errorf("%s: hits of %v were taken, %d panics; want %v and 1", how, store.took, handled, want)
				}
				store.took, handled = nil, 0
			}
			panics.Catch("alone", func() { d.Decide(request(d, "place")) })
			check("alone", tt.alone)
			inMemory := over(t, take.Memory(store).Behind(tt.stage))
			tried := request(inMemory, "place")
			if !inMemory.Try(tried) || tried.Err != nil || tried.Verdict.Failed() != tt.fails {
				t.Errorf("tried: %v, %+v", tried.Err, tried.Verdict)
			}
			panics.Catch("release", func() { release(&tried.Verdict) }) // its call has the same stage
			check("tried", tt.alone)

			r, other := request(d, "place"), request(d, "?place")
			d.Decide(r, other)
			if other.Err != nil || other.Verdict.Failed() || r.Err != nil || r.Verdict.Failed() != tt.fails {
				t.Errorf("together: %v, %+v; %v, %+v", r.Err, r.Verdict, other.Err, other.Verdict)
			}
			release(&r.Verdict)
			check("together", tt.together)
		})
	}
}
