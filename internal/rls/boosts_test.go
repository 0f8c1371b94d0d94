package rls

import (
	"slices"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
)

const boostRules = `
domain: shop
descriptors:
- key: user
  rate_limits:
  - {name: hour, unit: hour, requests_per_unit: 2}
  - {name: day, unit: day, requests_per_unit: 1000}
`

// scaled is the rule's limit times a factor.
func scaled(t *testing.T, l *descriptors.Limit, factor float64) *descriptors.Limit {
	t.Helper()
	s, err := l.Scaled(factor)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// What stands for a limit counts on with the same counter, is what Envoy is told, and is gone when it is taken away.
func TestBoosts(t *testing.T) {
	var boosts *decide.Boosts
	var limits []*descriptors.Limit
	s, _ := service(t, boostRules, func(o *options) {
		limits = o.Rules().Limits()
		o.Boosts = func() *decide.Boosts { return boosts }
	})
	// answers are how many of the next requests pass, and the limit that Envoy is told.
	answers := func(user string, n int) (passed int, told uint32) {
		t.Helper()
		for range n {
			res := ask(t, s, request(descriptor("user="+user)))
			if res.GetOverallCode() == pb.RateLimitResponse_OK {
				passed++
			}
			told = res.GetStatuses()[0].GetCurrentLimit().GetRequestsPerUnit()
		}
		return passed, told
	}
	expect := func(step, user string, n, wantPassed int, wantTold uint32) {
		t.Helper()
		if passed, told := answers(user, n); passed != wantPassed || told != wantTold {
			t.Errorf(
				"%s: %d of %d requests of %s pass, and Envoy is told %d; want %d and %d",
				step,
				passed,
				n,
				user,
				told,
				wantPassed,
				wantTold,
			)
		}
	}
	expect("before", "ann", 1, 1, 2)
	hour := limits[slices.IndexFunc(limits, func(l *descriptors.Limit) bool { return l.Name == "hour" })]
	boosts = &decide.Boosts{Rules: map[*descriptors.Limit]*descriptors.Limit{hour: scaled(t, hour, 2)}}
	expect("rule boosted", "ann", 4, 3, 4)
	expect("rule boosted", "bob", 5, 4, 4)
	boosts.Keys = map[string][]decide.Boosted{"fixed_window:hour|shop|user=bob": {{Of: hour, By: scaled(t, hour, 5)}}}
	expect("key boosted, too", "bob", 10, 5, 10) // denied requests of a fixed window count
	expect("another key", "ann", 1, 0, 4)
	boosts = &decide.Boosts{Rules: map[*descriptors.Limit]*descriptors.Limit{hour: scaled(t, hour, 0.5)}}
	expect("tightened", "eve", 3, 1, 1)
	boosts = nil
	expect("at the end", "bob", 1, 0, 2)
	expect("at the end", "eva", 3, 2, 2)
}

// A limit that a request brings along is no limit of the rules.
func TestBoostsLeaveOverridesAlone(t *testing.T) {
	s, _ := service(t, boostRules, func(o *options) {
		all := map[*descriptors.Limit]*descriptors.Limit{}
		for _, l := range o.Rules().Limits() {
			all[l] = scaled(t, l, 10)
		}
		o.Boosts = func() *decide.Boosts { return &decide.Boosts{Rules: all} }
	})
	d := limited(3, typepb.RateLimitUnit_MINUTE, descriptor("user=ann"))
	if res := ask(t, s, request(d)); res.GetStatuses()[0].GetCurrentLimit().GetRequestsPerUnit() != 3 {
		t.Errorf("the request's own limit has become %v", res.GetStatuses()[0])
	}
}

// Nothing is allocated for boosts, in force or not.
func TestBoostsAllocateNothing(t *testing.T) {
	set := compile(t, boostRules)
	keys := map[string][]decide.Boosted{"k": {{Of: set.Limits()[0], By: scaled(t, set.Limits()[0], 2)}}}
	b := &decide.Boosts{Keys: keys}
	if b.Limit(set.Limits()[0], "k") == set.Limits()[0] || b.Limit(set.Limits()[1], "k") != set.Limits()[1] {
		t.Error("a counter's boost is of one limit")
	}
	if n := testing.AllocsPerRun(100, func() { b.Limit(set.Limits()[0], "other") }); n != 0 {
		t.Errorf("%g allocations", n)
	}
}
