package descriptors_test

import (
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

const reservationRules = `
domain: shop
descriptors:
  - {key: a, rate_limit: {requests_per_unit: 100, unit: minute, reservation: {estimate: 20, at_most: 80}}}
  - {key: b, rate_limit: {algorithm: funnel, requests_per_unit: 50, unit: minute, reservation: {estimate: 2, ends: cost}}}
  - {key: c, rate_limit: {requests_per_unit: 0, unit: minute, reservation: {estimate: 20}}}
`

// reserves checks the reservation and all policies of a limit.
func reserves(t *testing.T, what string, l *descriptors.Limit, estimate, atMost, capacity, local int64) {
	t.Helper()
	if estimate == 0 {
		if l.Reservation != nil || l.Ends != nil || l.Policy.Params().Reserve != 0 {
			t.Errorf("%s has a reservation: %+v", what, l.Reservation)
		}
		return
	}
	if r := l.Reservation; r == nil || r.Estimate != estimate || r.AtMost != atMost || l.Ends == nil {
		t.Fatalf("%s has the reservation %+v and ends %v; want %d, %d", what, r, l.Ends, estimate, atMost)
	}
	type shown struct {
		reserve, capacity int64
		denied            limiter.ChargeDenied
	}
	for which, p := range map[*limiter.Policy]shown{
		l.Policy: {atMost, capacity, limiter.ChargeNone},
		l.Ends:   {atMost, capacity, limiter.ChargeFull},
		l.Local:  {0, local, limiter.ChargeNone},
	} {
		in := which.Params()
		if got := (shown{in.Reserve, which.Capacity(), in.ChargeDenied}); got != p {
			t.Errorf("%s: a policy has %+v, want %+v", what, got, p)
		}
		if in.Window != l.Policy.Window() && which != l.Local || in.Algorithm != l.Policy.Algorithm() {
			t.Errorf("%s: a policy has %s per %s", what, in.Algorithm, in.Window)
		}
	}
}

// A limit with a reservation has a policy for starts, for ends that charge, and for local counting.
func TestReservationPolicies(t *testing.T) {
	files := []rulefile.File{{Name: "rules.yaml", Data: []byte(reservationRules)}}
	for replicas, local := range map[int][]int64{1: {100, 50}, 4: {25, 12}} {
		set, err := rulefile.CompileFor(descriptors.Process{Replicas: replicas}, files)
		if err != nil {
			t.Fatal(err)
		}
		l := set.Limits()
		reserves(t, "a", l[0], 20, 80, 100, local[0])
		reserves(t, "b", l[1], 2, 25, 50, local[1])
		reserves(t, "c", l[2], 0, 0, 0, 0)
		if l[0].Reservation.EndsByCost || !l[1].Reservation.EndsByCost {
			t.Error("ends: cost belongs to b")
		}
	}
}

// A limit that a request carries has the rule's reservation, as far as its capacity allows.
func TestOverrideOfAReservation(t *testing.T) {
	shop := casetest.Compile(t, reservationRules).Domain("shop")
	for rate, want := range map[uint32][2]int64{0: {}, 1: {1, 1}, 50: {20, 50}, 1000: {20, 80}} {
		l, err := shop.Override(shop.Match(casetest.Entries("a=x")), rate, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		reserves(t, l.String(), l, want[0], want[1], int64(rate), int64(rate))
	}
	reserves(t, "the rule itself", shop.Rule("a").Limits[0], 20, 80, 100, 100)
}

// A Go program cannot set a Reserve without a Reservation, which has the same defaults and errors as in a rule file.
func TestReservationOfAGoProgram(t *testing.T) {
	compile := func(r *descriptors.Reservation, reserve int64) (*descriptors.Limit, error) {
		b := descriptors.NewBuilder(descriptors.Process{})
		b.Add("shop", &descriptors.Descriptor{Key: "k", RateLimit: &descriptors.RateLimit{
			Params:      limiter.Params{Algorithm: limiter.FixedWindow, Limit: 10, Window: time.Minute, Reserve: reserve},
			Reservation: r,
		}})
		set, err := b.Build()
		if err != nil {
			return nil, err
		}
		return set.Limits()[0], nil
	}
	if l, err := compile(nil, 5); err != nil || l.Policy.Params().Reserve != 0 {
		t.Errorf("%v, %v; want no Reserve", l, err)
	}
	l, err := compile(&descriptors.Reservation{Estimate: 2}, 0)
	if err != nil {
		t.Fatal(err)
	}
	reserves(t, "k", l, 2, 5, 10, 10)
	_, err = compile(&descriptors.Reservation{AtMost: 2}, 0)
	if want := "shop: k: reservation: estimate must be at least 1, got 0"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// Charges are the estimate, at_most, and at most 32 steps between them, none below what the request may cost.
func TestCharge(t *testing.T) {
	for _, r := range []descriptors.Reservation{
		{Estimate: 1, AtMost: 1},
		{Estimate: 1000, AtMost: 1000},
		{Estimate: 1, AtMost: 5000},
		{Estimate: 999, AtMost: 5000},
		{Estimate: 3, AtMost: 31},
		{Estimate: 1, AtMost: 4294967295},
	} {
		seen := map[int64]bool{}
		last := int64(0)
		for i := int64(-10); i <= 10_000; i++ {
			want := max(i, r.AtMost*i/10_000)
			n := r.Charge(want)
			if n < r.Estimate || n > r.AtMost || n < min(want, r.AtMost) || n < last {
				t.Fatalf("%+v charges %d for %d, and %d before", r, n, want, last)
			}
			last, seen[n] = n, true
		}
		if len(seen) > 34 || last != r.AtMost || r.Charge(r.Estimate) != r.Estimate {
			t.Errorf("%+v charges %d different values up to %d", r, len(seen), last)
		}
	}
}
