package decide_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

// without is a store that returns an error.
type without struct{ err error }

func (s without) Take(context.Context, []limiter.Hit, []limiter.Decision) error { return s.err }

// onePerHour has one rule.
func onePerHour(t *testing.T, policy descriptors.OnStoreFailure) *descriptors.Set {
	t.Helper()
	const rule = "domain: shop\ndescriptors: [{key: k, rate_limit: {requests_per_unit: 1, unit: hour}}]\n"
	set, err := rulefile.CompileFor(descriptors.Process{OnStoreFailure: policy},
		[]rulefile.File{{Name: "rules.yaml", Data: []byte(rule)}})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// If this process was too late for a response, it counts the request itself, whatever on_store_failure says. With
// allow, a shortage of CPU would otherwise admit requests without limit.
func TestLateRequestsAreCountedLocally(t *testing.T) {
	for _, policy := range []descriptors.OnStoreFailure{
		descriptors.Local, descriptors.Allow, descriptors.Deny, descriptors.Fail,
	} {
		t.Run(policy.String(), func(t *testing.T) {
			local, err := memstore.New(memstore.Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = local.Close() })
			set := onePerHour(t, policy)
			d, err := decide.New(decide.Options{
				Rules: func() *descriptors.Set { return set }, Local: local,
				Store: without{fmt.Errorf("%w: redis: %w", limiter.ErrUnavailable, limiter.ErrLate)},
			})
			if err != nil {
				t.Fatal(err)
			}
			for i, want := range []decide.Outcome{decide.AllowedLocally, decide.DeniedLocally} {
				r := d.NewRequest()
				r.Domain = "shop"
				r.Add(decide.Descriptor{Entries: []descriptors.Entry{{Key: "k", Value: "v"}}, Cost: 1})
				v, err := decided(t.Context(), d, r)
				if err != nil || v.Outcome(0) != want {
					t.Errorf("request %d: %v, %v; want %s", i, v, err, want)
				}
			}
		})
	}
}

// A request that is shed gets an error; no failure policy decides it.
func TestShedRequestIsAnError(t *testing.T) {
	set := onePerHour(t, descriptors.Local)
	d, err := decide.New(decide.Options{
		Rules: func() *descriptors.Set { return set },
		Store: without{fmt.Errorf("%w: redis: %w", limiter.ErrUnavailable, limiter.ErrShed)},
	})
	if err != nil {
		t.Fatal(err)
	}
	r := d.NewRequest()
	r.Domain = "shop"
	r.Add(decide.Descriptor{Entries: []descriptors.Entry{{Key: "k", Value: "v"}}, Cost: 1})
	if _, err := decided(t.Context(), d, r); !errors.Is(err, limiter.ErrShed) {
		t.Errorf("%v, want %v", err, limiter.ErrShed)
	}
}

// takers is a store that gets the calls themselves.
type takers struct {
	without

	since time.Time
}

func (s *takers) TakeAll(calls []*storekit.Call) { s.since = calls[0].Since }

// The store learns since when the caller waits: its timeout includes what came before.
func TestStoreLearnsSinceWhenTheCallerWaits(t *testing.T) {
	set, store := onePerHour(t, descriptors.Local), &takers{}
	d, err := decide.New(decide.Options{Rules: func() *descriptors.Set { return set }, Store: store})
	if err != nil {
		t.Fatal(err)
	}
	r := d.NewRequest()
	r.Domain, r.Since = "shop", time.Now().Add(-time.Second)
	r.Add(decide.Descriptor{Entries: []descriptors.Entry{{Key: "k", Value: "v"}}, Cost: 1})
	if _, err := decided(t.Context(), d, r); err != nil || store.since != r.Since {
		t.Errorf("since %s, want %s; %v", store.since, r.Since, err)
	}
}
