package decide_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/test/ruletest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

var errStore = errors.New("the store is away")

// waits is a store that asks a server: all fits, unless fails is set, and where there is a turn, it is in an hour.
type waits struct {
	fails  error
	during func()
	took   []int64 // the costs of the hits
}

func (s *waits) Take(_ context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	for i := range hits {
		s.took = append(s.took, hits[i].N)
		out[i] = limiter.Decision{Allowed: true, Remaining: 7}
		if hits[i].Policy.MaxWait() > 0 {
			out[i].Wait = time.Hour
		}
	}
	if s.during != nil {
		s.during()
	}
	return s.fails
}

// knows is one that waits, and knows some answers.
type knows struct {
	waits
	never, known bool
}

func (s *knows) Waits() bool { return !s.never }
func (s *knows) TakeAtOnce(_ []limiter.Hit, out []limiter.Decision) bool {
	out[0] = limiter.Decision{Remaining: 3}
	return s.known
}

// later is one that collects requests for its next call.
type later struct {
	waits
	begun, sent int
}

func (s *later) TakeLater([]limiter.Hit, []limiter.Decision, limiter.Waiter) bool {
	s.begun++
	return true
}
func (s *later) Send() { s.sent++ }

const mixed = `
domain: shop
descriptors:
  - {key: open, rate_limit: {requests_per_unit: 5, unit: hour}}
  - {key: closed, rate_limit: {requests_per_unit: 5, unit: hour, on_store_failure: deny}}
  - {key: caller, rate_limit: {requests_per_unit: 5, unit: hour, on_store_failure: error}}
  - {key: turn, rate_limit: {algorithm: leaky_queue, requests_per_unit: 1, unit: hour, burst: 5}}
  - {key: quiet, shadow_mode: true, rate_limit: {algorithm: leaky_queue, requests_per_unit: 1, unit: hour, burst: 5}}
  - {key: tried, shadow_mode: true, rate_limit: {algorithm: concurrency, requests_per_unit: 10, lease: 1h}}
  - {key: place, rate_limit: {algorithm: concurrency, requests_per_unit: 10, lease: 1h}}
  - {key: here, rate_limit: {algorithm: concurrency, requests_per_unit: 10, lease: 1h, on_store_failure: local}}
`

func over(t *testing.T, store limiter.Store, change ...func(*decide.Options)) *decide.Decider {
	t.Helper()
	set := ruletest.Compile(t, mixed)
	o := decide.Options{Rules: func() *descriptors.Set { return set }, Store: store}
	for _, f := range change {
		f(&o)
	}
	d, err := decide.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// request has a descriptor for each key: of cost 1, or -1 where the key begins with a minus, or 0 with a question mark.
func request(d *decide.Decider, keys ...string) *decide.Request {
	r := d.NewRequest()
	r.Domain = "shop"
	for _, key := range keys {
		cost := int64(1)
		switch key[0] {
		case '-':
			cost = -1
		case '?':
			cost = 0
		}
		r.Add(decide.Descriptor{Cost: cost, Entries: []descriptors.Entry{{Key: strings.TrimLeft(key, "-?"), Value: "a"}}})
	}
	return r
}

func TestDecideAtOnce(t *testing.T) {
	for name, tt := range map[string]struct {
		store   limiter.Store
		keys    []string
		decided bool
		denied  bool
		took    int
	}{
		"no limit, a store that waits":         {&waits{}, []string{"unknown"}, true, false, 0},
		"a store that waits":                   {&waits{}, []string{"open"}, false, false, 0},
		"a store that never waits":             {&knows{never: true}, []string{"open"}, true, false, 1},
		"a store that never waits, for a turn": {&knows{never: true}, []string{"turn"}, true, false, 1},
		"an answer that is known":              {&knows{known: true}, []string{"open"}, true, true, 0},
		"an answer that is not known":          {&knows{}, []string{"open"}, false, false, 0},
		"a turn is waited for":                 {&knows{known: true}, []string{"turn"}, false, false, 0},
		"a place may have to be given back":    {&knows{known: true}, []string{"tried"}, false, false, 0},
		"a place that a denied request lacks":  {&knows{known: true}, []string{"place"}, true, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			d := over(t, tt.store)
			v, decided, err := d.DecideAtOnce(t.Context(), request(d, tt.keys...))
			if err != nil || decided != tt.decided || (v != nil) != tt.decided || v != nil && v.Denied != tt.denied {
				t.Errorf("decided %t, %+v, %v; want decided %t, denied %t", decided, v, err, tt.decided, tt.denied)
			}
			took := 0
			switch s := tt.store.(type) {
			case *waits:
				took = len(s.took)
			case *knows:
				took = len(s.took)
			}
			if took != tt.took {
				t.Errorf("%d hits were taken, want %d", took, tt.took)
			}
		})
	}
}

// What cannot be decided at all is not handed to another goroutine.
func TestDecideAtOnceRefuses(t *testing.T) {
	d := over(t, &waits{}, func(o *decide.Options) { o.Rules = func() *descriptors.Set { return nil } })
	if _, decided, err := d.DecideAtOnce(t.Context(), request(d, "open")); !decided || !errors.Is(err, decide.ErrNoRules) {
		t.Errorf("without rules: decided %t, %v", decided, err)
	}
	d = over(t, &waits{})
	var invalid *decide.InvalidError
	if _, decided, err := d.DecideAtOnce(t.Context(), request(d)); !decided || !errors.As(err, &invalid) {
		t.Errorf("without descriptors: decided %t, %v", decided, err)
	}
}

func TestDecideLater(t *testing.T) {
	for name, tt := range map[string]struct {
		store limiter.Store
		key   string
		begun bool
	}{
		"a store without batches": {&waits{}, "open", false},
		"a batch":                 {&later{}, "open", true},
		"a turn is waited for":    {&later{}, "turn", false},
		"a place by itself":       {&later{}, "tried", false},
	} {
		t.Run(name, func(t *testing.T) {
			d := over(t, tt.store)
			r := request(d, tt.key)
			if _, decided, err := d.DecideAtOnce(t.Context(), r); decided || err != nil {
				t.Fatalf("decided %t, %v", decided, err)
			}
			begun := d.DecideLater(r, nil)
			d.Send()
			if begun != tt.begun {
				t.Errorf("begun is %t", begun)
			}
			if s, ok := tt.store.(*later); ok && (s.begun != 0) != tt.begun || ok && s.sent != 1 {
				t.Errorf("the store has begun %d requests and sent %d times", s.begun, s.sent)
			}
		})
	}
}

// Finish ends a request as Decide does, whether the store answered, failed, or nobody waits any more.
func TestFinish(t *testing.T) {
	for name, tt := range map[string]struct {
		key       string
		err, gone error
		denied    bool
		failures  int
		want      error
	}{
		"answered":                     {"open", nil, nil, true, 0, nil},
		"failed, limit open":           {"open", errStore, nil, false, 1, nil},
		"failed, limit closed":         {"closed", errStore, nil, true, 1, nil},
		"failed, a look":               {"?closed", errStore, nil, true, 1, nil},
		"failed, given back":           {"-closed", errStore, nil, false, 1, nil},
		"failed, the caller decides":   {"caller", errStore, nil, false, 1, decide.ErrUndecided},
		"failed since the caller left": {"closed", errStore, context.Canceled, false, 0, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			seen := &failures{}
			d := over(t, &later{}, func(o *decide.Options) { o.Observer = seen })
			r := request(d, tt.key)
			if _, _, err := d.DecideAtOnce(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			v, err := d.Finish(t.Context(), r, tt.err, tt.gone) // the decisions are still empty: nothing fits
			if !errors.Is(err, tt.want) || (v == nil) != (tt.want != nil) ||
				v != nil && (v.Denied != tt.denied || !errors.Is(v.StoreErr, tt.err)) {
				t.Errorf("%+v, %v; want denied %t, %v", v, err, tt.denied, tt.want)
			}
			if len(seen.errs) != tt.failures {
				t.Errorf("failures %v, want %d", seen.errs, tt.failures)
			}
		})
	}
}

// failures is an Observer of failures.
type failures struct{ errs []error }

func (*failures) Decided(*descriptors.Limit, decide.Outcome, int64, *limiter.Decision) {}
func (*failures) Answered(*descriptors.Domain, bool)                                   {}
func (f *failures) StoreFailed(err error)                                              { f.errs = append(f.errs, err) }

// Where no place is left to wait in, a request that may have to wait is denied. What it gives back is given back all
// the same, and nothing else is taken.
func TestNoPlaceToWaitIn(t *testing.T) {
	store, seen := &waits{}, &failures{}
	d := over(t, store, func(o *decide.Options) { o.MaxDelayed, o.Observer = 1, seen })
	decided := func(ctx context.Context, keys ...string) (*decide.Verdict, error) {
		store.took = nil
		return d.Decide(ctx, request(d, keys...))
	}
	first, err := decided(t.Context(), "turn")
	if err != nil || first.Wait == 0 || d.Delayed().Now != 1 {
		t.Fatalf("the first one: %+v, %v, %+v", first, err, d.Delayed())
	}
	if v, err := decided(t.Context(), "quiet"); err != nil || v.Wait != 0 || d.Delayed().Now != 1 {
		t.Errorf("a limit in shadow mode: waits %s, %v, %+v", v.Wait, err, d.Delayed())
	}
	const place, open, turn = 0, 1, 2
	v, err := decided(t.Context(), "-place", "open", "turn", "?place")
	if err != nil || !v.Denied || !v.Decisions[open].Allowed || v.Decisions[turn].Allowed ||
		v.Decisions[turn].RetryAfter != time.Second || v.Decisions[place].Remaining != 7 {
		t.Errorf("%+v, %v; want it denied for the turn alone", v, err)
	}
	if !slices.Equal(store.took, []int64{-1}) || d.Delayed() != (decide.DelayedStats{Now: 1, Refused: 1}) {
		t.Errorf("hits of %v were taken, want the one that is given back; %+v", store.took, d.Delayed())
	}
	if v, err = decided(t.Context(), "turn", "open"); err != nil || !v.Denied || store.took != nil {
		t.Errorf("nothing to give back: %+v, %v, hits of %v were taken", v, err, store.took)
	}
	if v, err = decided(t.Context(), "?turn"); err != nil || v.Denied || !slices.Equal(store.took, []int64{0}) {
		t.Errorf("a look: %+v, %v, hits of %v were taken", v, err, store.took)
	}
	if v, err = decided(t.Context(), "-turn", "?turn", "-place"); err != nil || v.Denied ||
		!slices.Equal(store.took, []int64{-1, 0, -1}) {
		t.Errorf("give-backs and a look: %+v, %v, hits of %v were taken", v, err, store.took)
	}
	store.fails = errStore
	if v, err = decided(t.Context(), "turn", "-place"); err != nil || !v.Denied || len(seen.errs) != 1 {
		t.Errorf("the store fails: %+v, %v, failures %v", v, err, seen.errs)
	}
	ctx, leave := context.WithCancel(t.Context())
	store.during = leave
	if _, err := decided(ctx, "turn", "-place"); !errors.Is(err, context.Canceled) || len(seen.errs) != 1 {
		t.Errorf("the caller leaves meanwhile: %v, failures %v", err, seen.errs)
	}
	store.fails, store.during = nil, nil
	first.Delay().End()
	if v, err = decided(t.Context(), "turn", "-place"); err != nil || v.Denied || !slices.Equal(store.took, []int64{1, -1}) {
		t.Errorf("once there is a place: %+v, %v, hits of %v were taken", v, err, store.took)
	}
}

// A place that was taken in this process while the store failed is given back here.
func TestPlacesTakenLocally(t *testing.T) {
	store, local := &waits{fails: errStore}, &waits{}
	d := over(t, store, func(o *decide.Options) { o.Local = local })
	v, err := d.Decide(t.Context(), request(d, "here"))
	if err != nil || v.Denied {
		t.Fatalf("%+v, %v", v, err)
	}
	store.fails, store.took = nil, nil
	if err := d.GiveBackPlaces(t.Context(), v); err != nil {
		t.Error(err)
	}
	if !slices.Equal(local.took, []int64{1, -1}) || store.took != nil {
		t.Errorf("hits of %v were taken here, and of %v by the store; want 1, -1 and none", local.took, store.took)
	}
}

// A request that is decided again begins anew, and one that is as large as it may be is decided.
func TestRequestsAtTheirBounds(t *testing.T) {
	d := over(t, &waits{}, func(o *decide.Options) { o.MaxDescriptors, o.MaxEntries, o.MaxEntryBytes = 2, 2, 5 })
	r := request(d, "place", "open")
	for range 2 {
		if v, err := d.Decide(t.Context(), r); err != nil || len(v.Hits) != 2 || len(v.Statuses) != 2 {
			t.Errorf("%d hits, %v; want 2", len(v.Hits), err)
		}
	}
	for size, want := range map[int]string{5: "", 6: "descriptors[0].entries[1].value: must be at most 5 bytes, got 6"} {
		r := d.NewRequest()
		r.Domain = "shop"
		long := strings.Repeat("v", size)
		r.Add(decide.Descriptor{Cost: 1, Entries: []descriptors.Entry{{Key: "place", Value: "v"}, {Key: "b", Value: long}}})
		if _, err := d.Decide(t.Context(), r); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("a value of %d bytes: %v, want %q", size, err, want)
		}
	}
}
