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
	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/internal/panics"
	"github.com/weir-ratelimit/weir/internal/take"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

var errStore = errors.New("the store is away")

// waits is a store of a server. Every hit fits unless fails is set, and a turn is in an hour.
type waits struct {
	fails  error
	during func()
	took   []int64 // the costs of the hits
}

func (s *waits) Take(_ context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	for i := range hits {
		s.took = append(s.took, hits[i].N)
		out[i] = limiter.Decision{Allowed: true, Remaining: 7}
		if limit.CountsInFlight(&hits[i]) {
			out[i].TakenAt = 1
		}
		if hits[i].Policy.MaxWait() > 0 {
			out[i].Wait = time.Hour
		}
	}
	if s.during != nil {
		s.during()
	}
	return s.fails
}

// knows is a stage that answers some requests.
type knows struct{ known bool }

func (s knows) Before(c *take.Call) bool {
	c.Out[0] = limiter.Decision{Remaining: 3}
	return s.known
}
func (knows) After(*take.Call) {}

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
	set := casetest.Compile(t, mixed)
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

// request has a descriptor per key: of cost 1, -1 for a key that begins with a minus, or 0 for a question mark.
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

// Try decides requests that its stages or memory can answer, and invalid requests.
func TestTry(t *testing.T) {
	store := &waits{}
	behind := func(known bool) limiter.Store { return take.Of(store).Behind(knows{known}) }
	for name, tt := range map[string]struct {
		store   limiter.Store
		key     string
		decided bool
		denied  bool
	}{
		"no limit, a store that waits":         {store, "unknown", true, false},
		"a store that waits":                   {store, "open", false, false},
		"a store that never waits":             {take.Memory(store), "open", true, false},
		"a store that never waits, for a turn": {take.Memory(store), "turn", true, false},
		"an answer that is known":              {behind(true), "open", true, true},
		"an answer that is not known":          {behind(false), "open", false, false},
		"a known answer about a turn":          {behind(true), "turn", true, true},
	} {
		t.Run(name, func(t *testing.T) {
			store.took = nil
			d := over(t, tt.store)
			r := request(d, tt.key)
			if decided := d.Try(r); decided != tt.decided || r.Err != nil || r.Verdict.Denied != tt.denied {
				t.Errorf("decided %t, %+v, %v; want decided %t, denied %t", decided, r.Verdict, r.Err, tt.decided, tt.denied)
			}
			if tt.decided {
				return
			}
			if d.Decide(r); r.Err != nil || r.Verdict.Denied || len(store.took) != 1 {
				t.Errorf("decided then: %+v, %v, %d hits were taken", r.Verdict, r.Err, len(store.took))
			}
		})
	}
	d := over(t, store, func(o *decide.Options) { o.Rules = func() *descriptors.Set { return nil } })
	if r := request(d, "open"); !d.Try(r) || !errors.Is(r.Err, decide.ErrNoRules) {
		t.Errorf("without rules: %v", r.Err)
	}
	var invalid *decide.InvalidError
	d = over(t, store)
	if r := request(d); !d.Try(r) || !errors.As(r.Err, &invalid) {
		t.Errorf("without descriptors: %v", r.Err)
	}
}

// Requests that are decided together have independent results, even if the decision of one panics.
func TestDecideTogether(t *testing.T) {
	t.Cleanup(panics.Handle(func(string, any, []byte) {}))
	d := over(t, &waits{}, func(o *decide.Options) { o.Watchers = []decide.Watcher{panicsFor("turn")} })
	all := []*decide.Request{request(d, "open"), request(d), request(d, "turn"), request(d, "place"), request(d, "unknown")}
	d.Decide(all...)
	var invalid *decide.InvalidError
	for i, r := range all {
		switch {
		case i == 1 && !errors.As(r.Err, &invalid), i == 2 && !errors.Is(r.Err, decide.ErrPanicked),
			i != 1 && i != 2 && (r.Err != nil || r.Verdict.Denied):
			t.Errorf("request %d: %+v, %v", i, r.Verdict, r.Err)
		}
	}
	if d.Delayed().Now != 0 {
		t.Errorf("the request that panicked counts as delayed")
	}
}

// panicsFor is a Watcher that panics for a key.
type panicsFor string

func (key panicsFor) Watch(_ context.Context, v *decide.Verdict) {
	if v.Request.Descriptors[0].Entries[0].Key == string(key) {
		panic("a bug")
	}
}

// If the store fails, failure policies decide, unless the caller no longer waits.
func TestStoreFails(t *testing.T) {
	for name, tt := range map[string]struct {
		key      string
		leaves   bool
		denied   bool
		failures int
		want     error
	}{
		"limit open":         {"open", false, false, 1, nil},
		"limit closed":       {"closed", false, true, 1, nil},
		"a peek":             {"?closed", false, true, 1, nil},
		"refunded":           {"-closed", false, false, 1, nil},
		"the caller decides": {"caller", false, false, 1, decide.ErrUndecided},
		"the caller left":    {"closed", true, false, 0, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			seen, store := &failures{}, &waits{fails: errStore}
			if tt.leaves {
				store.during = leave
			}
			d := over(t, store, func(o *decide.Options) { o.Observer = seen })
			v, err := decided(ctx, d, request(d, tt.key))
			if !errors.Is(err, tt.want) || v != nil && (v.Denied != tt.denied || !errors.Is(v.StoreErr, errStore)) {
				t.Errorf("%+v, %v; want denied %t, %v", v, err, tt.denied, tt.want)
			}
			if len(seen.errs) != tt.failures {
				t.Errorf("failures %v, want %d", seen.errs, tt.failures)
			}
		})
	}
}

// failures is an Observer that counts failures.
type failures struct{ errs []error }

func (*failures) Decided(*descriptors.Limit, decide.Outcome, int64, *limiter.Decision) {}
func (*failures) Answered(*descriptors.Domain, bool)                                   {}
func (*failures) Ended(*descriptors.Limit, int64, int64)                               {}
func (*failures) NotEnded(*descriptors.Limit)                                          {}
func (f *failures) StoreFailed(err error)                                              { f.errs = append(f.errs, err) }

// If all slots for delayed requests are taken, a request that might have to wait is denied. Its refunds count, and it
// is not charged.
func TestNoPlaceToWaitIn(t *testing.T) {
	store, seen := &waits{}, &failures{}
	d := over(t, store, func(o *decide.Options) { o.MaxDelayed, o.Observer = 1, seen })
	decided := func(ctx context.Context, keys ...string) (*decide.Verdict, error) {
		store.took = nil
		return decided(ctx, d, request(d, keys...))
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
		t.Errorf("hits of %v were taken, want the one that is refunded; %+v", store.took, d.Delayed())
	}
	if v, err = decided(t.Context(), "turn", "open"); err != nil || !v.Denied || store.took != nil {
		t.Errorf("nothing to refund: %+v, %v, hits of %v were taken", v, err, store.took)
	}
	if v, err = decided(t.Context(), "?turn"); err != nil || v.Denied || !slices.Equal(store.took, []int64{0}) {
		t.Errorf("a peek: %+v, %v, hits of %v were taken", v, err, store.took)
	}
	if v, err = decided(t.Context(), "-turn", "?turn", "-place"); err != nil || v.Denied ||
		!slices.Equal(store.took, []int64{-1, 0, -1}) {
		t.Errorf("give-backs and a peek: %+v, %v, hits of %v were taken", v, err, store.took)
	}
	for _, store.fails = range []error{limiter.ErrShed, errStore} {
		if v, err = decided(t.Context(), "turn", "-place"); err != nil || !v.Denied {
			t.Errorf("the store fails: %+v, %v", v, err)
		}
	}
	ctx, leave := context.WithCancel(t.Context())
	store.during = leave
	if _, err := decided(ctx, "turn", "-place"); !errors.Is(err, context.Canceled) || len(seen.errs) != 2 {
		t.Errorf("the caller leaves meanwhile: %v, failures %v", err, seen.errs)
	}
	store.fails, store.during = nil, nil
	release(first)
	if v, err = decided(t.Context(), "turn", "-place"); err != nil || v.Denied || !slices.Equal(store.took, []int64{1, -1}) {
		t.Errorf("once there is a place: %+v, %v, hits of %v were taken", v, err, store.took)
	}
}

// A hit in flight that this process counted while the store failed is released in this process.
func TestPlacesTakenLocally(t *testing.T) {
	store, local := &waits{fails: errStore}, &waits{}
	d := over(t, store, func(o *decide.Options) { o.Local = local })
	v, err := decided(t.Context(), d, request(d, "here"))
	if err != nil || v.Denied {
		t.Fatalf("%+v, %v", v, err)
	}
	store.fails, store.took = nil, nil
	release(v)
	if !slices.Equal(local.took, []int64{1, -1}) || store.took != nil {
		t.Errorf("hits of %v were taken here, and of %v by the store; want 1, -1 and none", local.took, store.took)
	}
}

// A request that is decided again starts from an empty state. A request of maximum size is decided.
func TestRequestsAtTheirBounds(t *testing.T) {
	d := over(t, &waits{}, func(o *decide.Options) { o.MaxDescriptors, o.MaxEntries, o.MaxEntryBytes = 2, 2, 5 })
	r := request(d, "place", "open")
	for range 2 {
		if v, err := decided(t.Context(), d, r); err != nil || len(v.Hits) != 2 || len(v.Statuses) != 2 {
			t.Errorf("%d hits, %v; want 2", len(v.Hits), err)
		}
	}
	seen := &failures{}
	again := over(t, &waits{fails: errStore}, func(o *decide.Options) { o.Observer = seen })
	r = request(again, "closed")
	again.Decide(r)
	r.Domain = "none"
	if v, err := decided(t.Context(), again, r); err != nil || v.Failed() || len(seen.errs) != 1 {
		t.Errorf("decided again, without limits: %+v, %v, failures %v; want only the first one's", v, err, seen.errs)
	}
	for size, want := range map[int]string{5: "", 6: "descriptors[0].entries[1].value: must be at most 5 bytes, got 6"} {
		r := d.NewRequest()
		r.Domain = "shop"
		long := strings.Repeat("v", size)
		r.Add(decide.Descriptor{Cost: 1, Entries: []descriptors.Entry{{Key: "place", Value: "v"}, {Key: "b", Value: long}}})
		if _, err := decided(t.Context(), d, r); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("a value of %d bytes: %v, want %q", size, err, want)
		}
	}
}
