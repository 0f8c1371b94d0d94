package decide_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

var (
	errUnasked = fmt.Errorf("%w: not sent", limiter.ErrUnavailable)
	errSilent  = fmt.Errorf("%w: no answer", limiter.ErrUnavailable)
)

// ends is a store that fails its first calls, and records the costs of each call. It is also the Observer.
type ends struct {
	mu     sync.Mutex
	fails  []error
	took   [][]int64
	heard  []string
	always error // error of all calls after fails
	leave  func()
}

func (s *ends) Take(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	if s.leave(); ctx.Err() != nil {
		return ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var costs []int64
	for i := range hits {
		costs = append(costs, hits[i].N)
		out[i] = limiter.Decision{Allowed: true}
	}
	s.took = append(s.took, costs)
	if len(s.fails) == 0 {
		return s.always
	}
	err := s.fails[0]
	s.fails = s.fails[1:]
	return err
}

func (s *ends) hear(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heard = append(s.heard, what)
}

func (*ends) Decided(*descriptors.Limit, decide.Outcome, int64, *limiter.Decision) {}
func (*ends) Answered(*descriptors.Domain, bool)                                   {}
func (*ends) StoreFailed(error)                                                    {}
func (s *ends) NotEnded(*descriptors.Limit)                                        { s.hear("lost") }

func (s *ends) Ended(_ *descriptors.Limit, charged, spent int64) {
	s.hear(fmt.Sprintf("charged %d, real %d", charged, spent))
}

func (s *ends) decider(t *testing.T) *decide.Decider {
	t.Helper()
	set := casetest.Compile(t, `
domain: shop
descriptors:
  - key: k
    rate_limits:
      - {name: hour, requests_per_unit: 10000, unit: hour, reservation: {estimate: 1000}}
      - {name: day, requests_per_unit: 20000, unit: day, reservation: {estimate: 1000}}
`)
	d, err := decide.New(decide.Options{
		Rules: func() *descriptors.Set { return set }, Store: s, Observer: s,
		Unasked: func(err error, hits int) bool { return errors.Is(err, errUnasked) && hits == 2 },
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// end decides the end of a request without a token, of cost 700.
func end(ctx context.Context, d *decide.Decider) error {
	r := d.NewRequest()
	r.Domain = "shop"
	r.Add(decide.Descriptor{Cost: 700, Entries: []descriptors.Entry{{Key: "k", Value: "a"}, {Key: decide.StartKey, Value: "none"}}})
	_, err := decided(ctx, d, r)
	return err
}

// An end is sent again, for ten seconds, only if the store surely has not seen it. Each end is reported once.
func TestEndsAreSentAgain(t *testing.T) {
	const ended, lost = "charged 0, real 700", "lost"
	for name, tt := range map[string]struct {
		fails       []error
		always      error
		leaves      string // when the caller leaves, before or during the first call
		calls       int
		first, last time.Duration // between these times, the last call is sent
		heard       string
	}{
		"at once":             {calls: 1, heard: ended},
		"second time":         {fails: []error{errUnasked}, calls: 2, first: 100 * time.Millisecond, heard: ended},
		"third time":          {fails: []error{errUnasked, errUnasked}, calls: 3, first: 300 * time.Millisecond, heard: ended},
		"may have run":        {fails: []error{errSilent}, calls: 1, heard: lost},
		"may have run later":  {fails: []error{errUnasked, errSilent}, calls: 2, first: 100 * time.Millisecond, heard: lost},
		"store stays away":    {always: errUnasked, calls: 10, first: 10 * time.Second, last: 12 * time.Second, heard: lost},
		"caller has left":     {leaves: "before", calls: 1, heard: ended},
		"caller leaves":       {leaves: "during", calls: 1, heard: ended},
		"caller leaves, lost": {leaves: "during", fails: []error{errSilent}, calls: 1, heard: lost},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, began := &ends{fails: tt.fails, always: tt.always, leave: func() {}}, time.Now()
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				switch tt.leaves {
				case "before":
					leave()
				case "during":
					s.leave = leave
				}
				if err := end(ctx, s.decider(t)); err != nil {
					t.Error(err)
				}
				var last time.Duration
				for calls := -1; time.Since(began) < time.Minute; time.Sleep(10 * time.Millisecond) {
					synctest.Wait()
					s.mu.Lock()
					if len(s.took) > calls {
						calls, last = len(s.took), time.Since(began)
					}
					s.mu.Unlock()
				}
				if want := slices.Repeat([]string{tt.heard}, 2); !slices.Equal(s.heard, want) {
					t.Errorf("heard %q, want %q", s.heard, want)
				}
				if len(s.took) != tt.calls || last < tt.first || last > max(tt.first, tt.last) {
					t.Errorf("%d calls, the last after %s; want %d, between %s and %s", len(s.took), last, tt.calls, tt.first, tt.last)
				}
				for _, costs := range s.took {
					if !slices.Equal(costs, []int64{700, 700}) {
						t.Errorf("costs %d", costs)
					}
				}
			})
		})
	}
}

// A bounded number of ends waits for the store.
func TestWaitingEndsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &ends{always: errUnasked, leave: func() {}}
		d := s.decider(t)
		sends := func(requests, lost int) {
			t.Helper()
			for range requests {
				if err := end(t.Context(), d); err != nil {
					t.Fatal(err)
				}
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			if len(s.heard) != 2*lost { // two limits
				t.Errorf("the ends of %d requests are lost, want %d", len(s.heard)/2, lost)
			}
		}
		sends(1001, 1)
		time.Sleep(time.Minute)
		sends(1, 1001)
		time.Sleep(time.Minute)
		sends(0, 1002)
	})
}

// A request with more limits than a token holds is not charged an estimate for the others, and all of their cost at its
// end.
func TestTokenIsBounded(t *testing.T) {
	var rules strings.Builder
	rules.WriteString("domain: shop\ndescriptors:\n- key: k\n  rate_limits:\n")
	for i := range 20 {
		fmt.Fprintf(&rules, "  - {name: l%d, requests_per_unit: 10000, window: %ds, reservation: {estimate: 1000}}\n", i, 3600+i)
	}
	d := newDecider(t, casetest.Compile(t, rules.String()))
	r := request(d, "k")
	v, err := decided(t.Context(), d, r)
	if err != nil {
		t.Fatal(err)
	}
	_, token := v.Start()
	remaining := func() (all []int64) {
		for i := range v.Decisions {
			all = append(all, v.Decisions[i].Remaining)
		}
		return all
	}
	want := append(slices.Repeat([]int64{9000}, 16), slices.Repeat([]int64{10_000}, 4)...)
	if got := remaining(); !slices.Equal(got, want) || len(token) > 16*60 {
		t.Errorf("%d remain, the token has %d bytes", got, len(token))
	}
	r = d.NewRequest()
	r.Domain = "shop"
	r.Add(decide.Descriptor{Cost: 400, Entries: []descriptors.Entry{{Key: decide.StartKey, Value: token}, {Key: "k", Value: "a"}}})
	if v, err = decided(t.Context(), d, r); err != nil {
		t.Fatal(err)
	}
	if got := remaining(); !slices.Equal(got, slices.Repeat([]int64{9600}, 20)) {
		t.Errorf("%d remain after the end", got)
	}
}
