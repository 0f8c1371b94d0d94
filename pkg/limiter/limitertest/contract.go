package limitertest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Fresh makes an empty store whose time is the clock's, and sees to its end with t.Cleanup.
type Fresh func(t *testing.T, clock *Clock) limiter.Store

// Run checks the contract of a store, each part on a fresh one.
func Run(t *testing.T, fresh Fresh) {
	t.Helper()
	parts := []struct {
		name  string
		check func(f *fixture)
	}{
		{"no hits", noHits},
		{"hits that nobody can decide", invalidHits},
		{"peeks write nothing", peeks},
		{"refunds stop at empty", refunds},
		{"charge_denied", chargeDenied},
		{"all or none", allOrNone},
		{"only the hit that denied is charged", onlyTheDenier},
		{"the same key twice", sameKeyTwice},
		{"the same key beyond its capacity", sameKeyBeyondCapacity},
		{"refund beside a denial", refundBesideDenial},
		{"shadow", shadow},
		{"quota", quota},
		{"quota of several limits", quotaOfSeveralLimits},
		{"quota beside enforce", quotaBesideEnforce},
		{"quota that a large cost exhausts", quotaExhausted},
		{"quota of an algorithm that owes nothing", quotaSpends},
		{"quota groups that do not stand side by side", quotaScattered},
		{"ban", ban},
		{"reset of a fixed window", windowEnds},
		{"cost above capacity", costAboveCapacity},
		{"clock steps back", clockStepsBack},
		{"clock steps back on a limit with room", clockStepsBackWithRoom},
		{"clock steps back while requests wait", clockStepsBackWhileWaiting},
		{"keys", keys},
		{"many hits", manyHits},
		{"changed align", changedAlign},
		{"changed rule of a limit that warms up", changedWarmUp},
		{"changed rule of a limit that warms up, to the microsecond", changedWarmUpExactly},
		{"waits", waits},
		{"waits of a denied request", noWaitWhenDenied},
		{"bucket that starts empty beside a denial", emptyBesideDenial},
		{"done context", doneContext},
		{"concurrent requests", concurrent},
		{"concurrent requests of several keys", concurrentSeveral},
	}
	for _, v := range vectors {
		t.Run(v.name, func(t *testing.T) { v.check(newFixture(t, fresh)) })
	}
	for _, p := range parts {
		t.Run(p.name, func(t *testing.T) { p.check(newFixture(t, fresh)) })
	}
	t.Run("changed rule", func(t *testing.T) { runChanges(t, fresh) })
}

// fixture is a store under test and its clock.
type fixture struct {
	*testing.T
	clock *Clock
	store limiter.Store
}

func newFixture(t *testing.T, fresh Fresh) *fixture {
	t.Helper()
	clock := NewClock()
	return &fixture{T: t, clock: clock, store: fresh(t, clock)}
}

// policy makes a policy of sound parameters.
func policy(tb testing.TB, in limiter.Params) *limiter.Policy {
	tb.Helper()
	p, err := limiter.NewPolicy(in)
	if err != nil {
		tb.Fatalf("NewPolicy(%+v): %v", in, err)
	}
	return p
}

// hourly is a policy of limit hits an hour.
func (f *fixture) hourly(a limiter.Algorithm, limit int64) *limiter.Policy {
	f.Helper()
	return policy(f, limiter.Params{Algorithm: a, Limit: limit, Window: time.Hour})
}

var algorithms = []limiter.Algorithm{
	limiter.FixedWindow, limiter.Funnel, limiter.TokenBucket, limiter.SlidingWindow, limiter.SlidingLog,
}

// every is every algorithm: those of algorithms pass Limit hits at once, Concurrency too until they are given back,
// and the last three something else.
var every = append(slices.Clone(algorithms), limiter.Concurrency, limiter.SmoothBursty, limiter.LeakyQueue,
	limiter.SmoothWarmingUp)

// counting are those that pass Limit hits at once.
var counting = every[:len(algorithms)+1]

// take decides a request of the hits.
func (f *fixture) take(hits ...limiter.Hit) []limiter.Decision {
	f.Helper()
	out := make([]limiter.Decision, len(hits))
	if err := f.store.Take(f.Context(), hits, out); err != nil {
		f.Fatalf("Take(%s): %v", describe(hits), err)
	}
	return out
}

// want takes the hits and checks which of them fit.
func (f *fixture) want(allowed string, hits ...limiter.Hit) {
	f.Helper()
	var got strings.Builder
	for _, d := range f.take(hits...) {
		if d.Allowed {
			got.WriteByte('+')
		} else {
			got.WriteByte('-')
		}
	}
	if got.String() != allowed {
		f.Errorf("%s: got %s, want %s", describe(hits), got.String(), allowed)
	}
}

// remaining checks what is left of a key, without charging it.
func (f *fixture) remaining(key string, p *limiter.Policy, want int64) {
	f.Helper()
	if d := f.take(limiter.Hit{Key: key, Policy: p, Look: true})[0]; d.Remaining != want {
		f.Errorf("%s of %q: %d hits remain, want %d", p.Algorithm(), key, d.Remaining, want)
	}
}

func describe(hits []limiter.Hit) string {
	parts := make([]string, len(hits))
	for i, h := range hits {
		parts[i] = fmt.Sprintf("%s %+d %s", h.Key, h.N, [...]string{"enforce", "shadow", "quota"}[h.Mode])
	}
	return strings.Join(parts, ", ")
}

func noHits(f *fixture) { f.take() }

func peeks(f *fixture) {
	for _, a := range counting {
		p, key := f.hourly(a, 3), a.String()
		untouched := limiter.Decision{Allowed: true, Remaining: 3, ResetAfter: untilReset(p)}
		for range 5 {
			if d := f.take(limiter.Hit{Key: key, Policy: p, Look: true}); d[0] != untouched {
				f.Errorf("%s: a look at a new key: %s", a, cmp.Diff(untouched, d[0]))
			}
		}
		f.want("+", limiter.Hit{Key: key, Policy: p, N: 2})
		f.want("+", limiter.Hit{Key: key, Policy: p, Look: true})
		f.want("+", limiter.Hit{Key: key, Policy: p, N: 1})
		f.want("-", limiter.Hit{Key: key, Policy: p, Look: true})
	}
	p := policy(f, limiter.Params{
		Algorithm: limiter.FixedWindow, Align: limiter.AlignFirstHit, Limit: 1, Window: time.Minute,
	})
	f.take(limiter.Hit{Key: "first", Policy: p, Look: true})
	f.clock.Advance(30 * time.Second)
	if d := f.take(limiter.Hit{Key: "first", Policy: p, N: 1})[0]; d.ResetAfter != time.Minute {
		f.Errorf("a look began a window: it ends after %s, want 1m0s", d.ResetAfter)
	}
}

func refunds(f *fixture) {
	for _, a := range counting {
		p, key := f.hourly(a, 5), a.String()
		untouched := limiter.Decision{Allowed: true, Remaining: 5, ResetAfter: untilReset(p)}
		if d := f.take(limiter.Hit{Key: key, Policy: p, N: -3})[0]; d != untouched {
			f.Errorf("%s: refund of a new key: %s", a, cmp.Diff(untouched, d))
		}
		f.want("+", limiter.Hit{Key: key, Policy: p, N: 4})
		f.want("+", limiter.Hit{Key: key, Policy: p, N: -1})
		f.remaining(key, p, 2)
		if d := f.take(limiter.Hit{Key: key, Policy: p, N: -limiter.MaxHits})[0]; d != untouched {
			f.Errorf("%s: refund of more than was taken: %s", a, cmp.Diff(untouched, d))
		}
		f.want("+", limiter.Hit{Key: key, Policy: p, N: 5})
		f.want("-", limiter.Hit{Key: key, Policy: p, N: 1})
	}
}

// chargeDenied spends 6 of 10, is denied 8, is given 5 back, and looks at what is left.
func chargeDenied(f *fixture) {
	for _, a := range counting {
		for _, c := range []struct {
			charge             limiter.ChargeDenied
			afterDenial, after int64
		}{
			{limiter.ChargeNone, 4, 9},
			{limiter.ChargeRemaining, 0, 5},
			{limiter.ChargeFull, 0, 1},
		} {
			p := policy(f, limiter.Params{Algorithm: a, Limit: 10, Window: time.Hour, ChargeDenied: c.charge})
			key := a.String() + "/" + c.charge.String()
			f.want("+", limiter.Hit{Key: key, Policy: p, N: 6})
			d := f.take(limiter.Hit{Key: key, Policy: p, N: 8})[0]
			if d.Allowed || d.Remaining != c.afterDenial {
				f.Errorf("%s: 8 of 4: got %+v, want a denial with %d remaining", key, d, c.afterDenial)
			}
			f.want("+", limiter.Hit{Key: key, Policy: p, N: -5})
			f.remaining(key, p, c.after)
		}
	}
}

func allOrNone(f *fixture) {
	for _, a := range counting {
		wide, narrow := f.hourly(a, 10), f.hourly(limiter.Funnel, 2)
		hits := []limiter.Hit{
			{Key: a.String() + "/wide", Policy: wide, N: 1},
			{Key: a.String() + "/narrow", Policy: narrow, N: 1},
		}
		f.want("++", hits...)
		f.want("++", hits...)
		d := f.take(hits...)
		if !d[0].Allowed || d[0].Remaining != 8 || d[0].RetryAfter != 0 {
			f.Errorf("%s beside a denial: got %+v, want it to fit and to keep its 8", a, d[0])
		}
		if d[1].Allowed || d[1].RetryAfter != 30*time.Minute {
			f.Errorf("the denial: got %+v, want to be told to retry after 30m0s", d[1])
		}
		f.remaining(hits[0].Key, wide, 8)
	}
}

func onlyTheDenier(f *fixture) {
	p := f.hourly(limiter.FixedWindow, 2)
	wide := f.hourly(limiter.FixedWindow, 10)
	f.want("+", limiter.Hit{Key: "narrow", Policy: p, N: 2})
	f.want("+-+",
		limiter.Hit{Key: "before", Policy: wide, N: 1},
		limiter.Hit{Key: "narrow", Policy: p, N: 1},
		limiter.Hit{Key: "after", Policy: wide, N: 1})
	f.want("+", limiter.Hit{Key: "narrow", Policy: p, N: -1})
	f.remaining("narrow", p, 0) // 2 taken, 1 charged for the denial, 1 given back
	f.remaining("before", wide, 10)
	f.remaining("after", wide, 10)
}

func sameKeyTwice(f *fixture) {
	for _, a := range counting {
		p, key := f.hourly(a, 3), a.String()
		if a == limiter.FixedWindow {
			p = policy(f, limiter.Params{Algorithm: a, Limit: 3, Window: time.Hour, ChargeDenied: limiter.ChargeNone})
		}
		two := limiter.Hit{Key: key, Policy: p, N: 2}
		f.want("+-", two, two)
		f.remaining(key, p, 3)
		d := f.take(limiter.Hit{Key: key, Policy: p, N: 1}, two)
		if !d[0].Allowed || !d[1].Allowed || d[0].Remaining != 2 || d[1].Remaining != 0 {
			f.Errorf("%s: 1 and 2 of 3: got %+v, want both to fit, with 2 and 0 remaining", a, d)
		}
		f.want("-", limiter.Hit{Key: key, Policy: p, N: 1})
	}
}

func refundBesideDenial(f *fixture) {
	for _, a := range counting {
		p, full := f.hourly(a, 5), f.hourly(limiter.Funnel, 1)
		f.want("++", limiter.Hit{Key: a.String(), Policy: p, N: 4}, limiter.Hit{Key: a.String() + "/full", Policy: full, N: 1})
		f.want("+-", limiter.Hit{Key: a.String(), Policy: p, N: -3}, limiter.Hit{Key: a.String() + "/full", Policy: full, N: 1})
		f.remaining(a.String(), p, 4)
	}
}

func shadow(f *fixture) {
	for _, a := range counting {
		five, one := f.hourly(limiter.Funnel, 5), f.hourly(a, 1)
		hits := []limiter.Hit{
			{Key: a.String() + "/five", Policy: five, N: 1},
			{Key: a.String() + "/one", Policy: one, N: 1, Mode: limiter.Shadow},
		}
		for _, want := range []string{"++", "+-", "+-", "+-", "+-", "--"} {
			f.want(want, hits...)
		}
		f.remaining(hits[0].Key, five, 0)
	}
	three := f.hourly(limiter.Funnel, 3)
	f.want("-+", limiter.Hit{Key: "ban", Policy: f.hourly(limiter.Funnel, 0), N: 1},
		limiter.Hit{Key: "charged", Policy: three, N: 1, Mode: limiter.Shadow})
	f.remaining("charged", three, 2) // by itself, though the request is denied

	debt := policy(f, limiter.Params{
		Algorithm: limiter.Funnel, Limit: 3, Window: time.Hour, ChargeDenied: limiter.ChargeFull,
	})
	f.want("+-", limiter.Hit{Key: "charged", Policy: three, N: 1},
		limiter.Hit{Key: "debt", Policy: debt, N: 4, Mode: limiter.Shadow})
	f.want("+", limiter.Hit{Key: "debt", Policy: debt, N: -2})
	f.remaining("debt", debt, 1) // its own charge_denied, though the request is admitted
}

func quota(f *fixture) {
	one, two := f.hourly(limiter.FixedWindow, 1), f.hourly(limiter.FixedWindow, 2)
	hits := []limiter.Hit{
		{Key: "one", Policy: one, N: 1, Mode: limiter.Quota},
		{Key: "two", Policy: two, N: 1, Mode: limiter.Quota, Group: 1},
	}
	f.want("++", hits...)
	f.want("-+", hits...) // admitted: only one of them is over
	f.want("+", limiter.Hit{Key: "one", Policy: one, N: -1})
	f.remaining("one", one, 0) // what did not fit was charged, too: the request passed
	f.remaining("two", two, 0)
	f.want("--", hits...) // denied, and both are fixed windows, which charge denials
	f.want("+", limiter.Hit{Key: "one", Policy: one, N: -1})
	f.want("+", limiter.Hit{Key: "two", Policy: two, N: -1})
	f.remaining("one", one, 0)
	f.remaining("two", two, 0)
}

// sameKeyBeyondCapacity: no wait lets two hits pass that together are more than the limit takes.
func sameKeyBeyondCapacity(f *fixture) {
	for _, a := range algorithms {
		p := f.hourly(a, 3)
		hit := limiter.Hit{Key: a.String(), Policy: p, N: 2}
		if got := f.take(hit, hit)[1]; got.Allowed || got.RetryAfter != limiter.Never {
			f.Errorf("%s: 2 and 2 of 3: %+v, want never", a, got)
		}
	}
}

// quotaOfSeveralLimits: one descriptor is over when one of its limits is.
func quotaOfSeveralLimits(f *fixture) {
	short, long := f.hourly(limiter.Funnel, 1), f.hourly(limiter.Funnel, 9)
	hits := []limiter.Hit{
		{Key: "short", Policy: short, N: 1, Mode: limiter.Quota},
		{Key: "long", Policy: long, N: 1, Mode: limiter.Quota},
		{Key: "other", Policy: short, N: 1, Mode: limiter.Quota, Group: 1},
	}
	f.want("+++", hits...)
	f.want("-+-", hits...) // both descriptors are over: denied, so nothing is charged
	f.remaining("long", long, 8)
	f.want("-++", hits[0], hits[1], limiter.Hit{Key: "fresh", Policy: short, N: 1, Mode: limiter.Quota, Group: 1})
	f.remaining("long", long, 7)
}

// quotaExhausted: what does not fit into one quota passes where another one has room, and is charged to both. So two large
// costs exhaust the small one, as in envoyproxy/ratelimit.
func quotaExhausted(f *fixture) {
	for _, charge := range []limiter.ChargeDenied{limiter.ChargeNone, limiter.ChargeRemaining, limiter.ChargeFull} {
		of := func(limit int64) *limiter.Policy {
			return policy(f, limiter.Params{Algorithm: limiter.FixedWindow, Limit: limit, Window: time.Hour, ChargeDenied: charge})
		}
		name := charge.String() + "/"
		small, large := of(10), of(1000)
		hits := []limiter.Hit{
			{Key: name + "small", Policy: small, N: 8, Mode: limiter.Quota},
			{Key: name + "large", Policy: large, N: 8, Mode: limiter.Quota, Group: 1},
		}
		f.want("++", hits...)
		f.want("-+", hits...)
		f.remaining(name+"small", small, 0)
		f.remaining(name+"large", large, 984)
		left := int64(3)
		if charge == limiter.ChargeFull {
			left = 0 // 16 of 10
		}
		f.want("+", limiter.Hit{Key: name + "small", Policy: small, N: -3})
		f.remaining(name+"small", small, left)
		// An enforced limit that denies takes all of that back.
		f.want("-+-", hits[0], hits[1], limiter.Hit{Key: "ban", Policy: f.hourly(limiter.FixedWindow, 0), N: 1})
		f.remaining(name+"small", small, left)
		f.remaining(name+"large", large, 984)
	}
}

// quotaSpends: of a quota that cannot be in debt what is left is charged, whatever its algorithm; but a hit that does not
// fit among those in flight holds no place, since nobody would give it back.
func quotaSpends(f *fixture) {
	wide := f.hourly(limiter.Funnel, 1000)
	for _, a := range counting[1:] {
		p, left := f.hourly(a, 10), int64(0)
		if a == limiter.Concurrency {
			left = 2
		}
		hits := []limiter.Hit{
			{Key: a.String(), Policy: p, N: 8, Mode: limiter.Quota},
			{Key: a.String() + "/wide", Policy: wide, N: 8, Mode: limiter.Quota, Group: 1},
		}
		f.want("++", hits...)
		f.want("-+", hits...)
		f.remaining(a.String(), p, left)
		// The same counter again within the request sees what was spent.
		again := limiter.Hit{Key: a.String() + "/twice", Policy: p, N: 6, Mode: limiter.Quota, Group: 2}
		f.want("+-+", again, again, hits[1])
		f.remaining(again.Key, p, left*2)
	}
}

// quotaScattered: a group is what has its number, wherever its hits stand.
func quotaScattered(f *fixture) {
	one, nine := f.hourly(limiter.Funnel, 1), f.hourly(limiter.Funnel, 9)
	of := func(key string, p *limiter.Policy, group int) limiter.Hit {
		return limiter.Hit{Key: key, Policy: p, N: 1, Mode: limiter.Quota, Group: group}
	}
	shadow := limiter.Hit{Key: "shadow", Policy: nine, N: 1, Mode: limiter.Shadow, Group: 1}
	f.want("++", of("a", one, 1), of("b", one, 2))
	// Both groups have one that is over: denied, so that nothing is charged.
	f.want("-+-+", of("a", one, 1), of("c", nine, 2), of("b", one, 2), of("d", nine, 1))
	f.want("+-+-", of("d", nine, 1), of("b", one, 2), of("c", nine, 2), of("a", one, 1))
	f.remaining("c", nine, 9)
	f.remaining("d", nine, 9)
	// A shadow between the hits of a group does not part them.
	f.want("-++", of("a", one, 1), shadow, of("d", nine, 1))
	f.remaining("d", nine, 9)
	// The second group has room.
	f.want("+-+", of("c", nine, 2), of("a", one, 1), of("d", nine, 2))
	f.remaining("c", nine, 8)
	f.remaining("d", nine, 8)
}

func quotaBesideEnforce(f *fixture) {
	p := f.hourly(limiter.FixedWindow, 1)
	over := limiter.Hit{Key: "over", Policy: p, N: 1, Mode: limiter.Quota}
	left := limiter.Hit{Key: "left", Policy: p, N: 1, Mode: limiter.Quota, Group: 1}
	f.want("+", over)
	f.want("-+-", over, left, limiter.Hit{Key: "ban", Policy: f.hourly(limiter.FixedWindow, 0), N: 1})
	f.remaining("left", p, 1)
	f.want("+", limiter.Hit{Key: "over", Policy: p, N: -1})
	f.remaining("over", p, 1) // it did not deny, so it was not charged for the denial
	f.want("+", over)
	f.want("-+", over, limiter.Hit{Key: "enforced", Policy: p, N: 1}) // denied by its only quota hit
	f.remaining("enforced", p, 1)
}

// untilReset is the reset of a counter that was never hit, at the start of an hour.
func untilReset(p *limiter.Policy) time.Duration {
	if p.Algorithm() == limiter.FixedWindow {
		return p.Window()
	}
	return 0
}

// windowEnds: a fixed window says when it ends, to whoever is banned, looks, gives back or is the first, in every mode.
func windowEnds(f *fixture) {
	f.clock.Advance(20 * time.Minute)
	for _, align := range []limiter.Align{limiter.AlignEpoch, limiter.AlignFirstHit, limiter.AlignCalendar} {
		for _, limit := range []int64{0, 5} {
			p := policy(f, limiter.Params{Algorithm: limiter.FixedWindow, Limit: limit, Window: time.Hour, Align: align})
			want := 40 * time.Minute
			if align == limiter.AlignFirstHit {
				want = time.Hour // from the hit on that would begin it
			}
			for _, n := range []int64{0, -1, 1, 9, 0, -1, 0} {
				key := fmt.Sprintf("%s of %d", align, limit)
				if d := f.take(limiter.Hit{Key: key, Policy: p, N: n, Look: n == 0})[0]; d.ResetAfter != want {
					f.Errorf("%s, cost %d: reset after %s, want %s", key, n, d.ResetAfter, want)
				}
			}
			for _, mode := range []limiter.Mode{limiter.Enforce, limiter.Shadow, limiter.Quota} {
				hit := limiter.Hit{Key: "fresh", Policy: p, Look: true, Mode: mode}
				if d := f.take(hit, limiter.Hit{Key: "ban", Policy: f.hourly(limiter.Funnel, 0), N: 1})[0]; d.ResetAfter != want {
					f.Errorf("%s of %d, beside a ban: reset after %s, want %s", align, limit, d.ResetAfter, want)
				}
			}
		}
	}
}

// invalidHits are errors before anything is charged, and after each of them the store goes on.
func invalidHits(f *fixture) {
	p, log, window := f.hourly(limiter.Funnel, 3), f.hourly(limiter.SlidingLog, 3), f.hourly(limiter.SlidingWindow, 3)
	good := limiter.Hit{Key: "good", Policy: p, N: 1}
	for _, c := range []struct {
		name string
		hits []limiter.Hit
		room int
		want string
	}{
		{"a cost that was forgotten", []limiter.Hit{good, {Key: "free", Policy: p}}, 2, "hits[1].N: must not be 0; set Look if the hit is only to look"},
		{"a look that costs", []limiter.Hit{{Key: "free", Policy: p, N: 1, Look: true}}, 1, "hits[0].Look: a hit that only looks has no cost, got N 1"},
		{"short out", []limiter.Hit{good, good}, 1, "there are 2 hits, and out has room for 1 answers"},
		{"no policy", []limiter.Hit{good, {Key: "k", N: 1}}, 2, "hits[1].Policy: must be set"},
		{"a policy that nobody made", []limiter.Hit{{Key: "k", Policy: &limiter.Policy{}, N: 1}}, 1, "hits[0].Policy: must be set"},
		{"a cost that is too large", []limiter.Hit{good, {Key: "k", Policy: p, N: limiter.MaxHits + 1}}, 2, "hits[1].N: must be between"},
		{"the largest number", []limiter.Hit{{Key: "k", Policy: p, N: math.MaxInt64}}, 1, "hits[0].N: must be between"},
		{"the lowest number", []limiter.Hit{{Key: "k", Policy: p, N: math.MinInt64}}, 1, "hits[0].N: must be between"},
		{"a mode that there is not", []limiter.Hit{good, {Key: "k", Policy: p, N: 1, Mode: 3}}, 2, "hits[1].Mode: must be Enforce, Shadow or Quota, got 3"},
		{
			"one key of two algorithms",
			[]limiter.Hit{good, {Key: "k", Policy: log, N: 1}, {Key: "k", Policy: window, N: 1}},
			3,
			`hits[1] and hits[2] have the same key, "k", and do not count alike`,
		},
	} {
		err := f.store.Take(f.Context(), c.hits, make([]limiter.Decision, c.room))
		if !errors.Is(err, limiter.ErrInvalid) || errors.Is(err, limiter.ErrUnavailable) || !strings.Contains(err.Error(), c.want) {
			f.Errorf("%s: %v, want ErrInvalid: %s", c.name, err, c.want)
		}
	}
	many := make([]limiter.Hit, 50)
	for i := range many {
		many[i] = limiter.Hit{Key: fmt.Sprint("many ", i), Policy: log, N: 1}
	}
	many[49] = limiter.Hit{Key: "many 7", Policy: window, N: 1}
	if err := f.store.Take(f.Context(), many, make([]limiter.Decision, 50)); !errors.Is(err, limiter.ErrInvalid) {
		f.Errorf("one key of two algorithms among many: %v, want ErrInvalid", err)
	}
	f.remaining("good", p, 3)
	f.want("+", limiter.Hit{Key: "k", Policy: log, N: 1})
	f.remaining("many 7", log, 3)
}

func ban(f *fixture) {
	for _, a := range every {
		p := f.hourly(a, 0)
		denied := limiter.Decision{RetryAfter: limiter.Never, ResetAfter: untilReset(p)}
		for _, n := range []int64{1, 0, limiter.MaxHits} {
			if d := f.take(limiter.Hit{Key: a.String(), Policy: p, N: n, Look: n == 0})[0]; d != denied {
				f.Errorf("%s, limit 0, cost %d: %s", a, n, cmp.Diff(denied, d))
			}
		}
		f.want("+", limiter.Hit{Key: a.String(), Policy: p, N: -1})
		f.want("-", limiter.Hit{Key: a.String(), Policy: p, N: 1})
	}
}

func costAboveCapacity(f *fixture) {
	for _, a := range counting {
		p := policy(f, limiter.Params{Algorithm: a, Limit: 4, Window: time.Hour, ChargeDenied: limiter.ChargeNone})
		for _, n := range []int64{5, limiter.MaxHits} {
			want := limiter.Decision{Remaining: 4, RetryAfter: limiter.Never, ResetAfter: untilReset(p)}
			if d := f.take(limiter.Hit{Key: a.String(), Policy: p, N: n, Look: n == 0})[0]; d != want {
				f.Errorf("%s, cost %d of 4: %s", a, n, cmp.Diff(want, d))
			}
		}
		f.want("+", limiter.Hit{Key: a.String(), Policy: p, N: 4})
		if d := f.take(limiter.Hit{Key: a.String(), Policy: p, N: 4})[0]; d.Allowed || d.RetryAfter == limiter.Never {
			f.Errorf("%s, cost 4 of 4 twice: got %+v, want a denial that ends", a, d)
		}
	}
}

func clockStepsBack(f *fixture) {
	for _, a := range every {
		p, key := f.hourly(a, 3), a.String()
		f.clock.Set(start + 100*24*time.Hour.Microseconds())
		for left := int64(1); left > 0; {
			d := f.take(limiter.Hit{Key: key, Policy: p, N: 1})[0]
			if !d.Allowed {
				f.Fatalf("%s: one of %d that remained: %+v", a, left, d)
			}
			left = d.Remaining
		}
		for _, back := range []time.Duration{time.Microsecond, time.Minute, 59 * time.Minute, time.Hour, 24 * time.Hour} {
			f.clock.Advance(-back)
			d := f.take(limiter.Hit{Key: key, Policy: p, N: 1})[0]
			if d.Allowed || d.Remaining != 0 || d.RetryAfter <= 0 || d.RetryAfter == limiter.Never {
				f.Errorf("%s, clock back by %s more: got %+v, want a denial that ends", a, back, d)
			}
		}
	}
}

func keys(f *fixture) {
	p := f.hourly(limiter.Funnel, 1)
	for _, key := range []string{
		"", "a", "A", "a ", "a\x00", "\xff\xfe", "a:b", "a{b}c", "{", "a\r\nb", "*", "ключ", strings.Repeat("k", 4096),
		strings.Repeat("k", 4095),
	} {
		f.want("+", limiter.Hit{Key: key, Policy: p, N: 1})
		f.want("-", limiter.Hit{Key: key, Policy: p, N: 1})
	}
}

func manyHits(f *fixture) {
	const n = 50
	var hits []limiter.Hit
	for i := range n {
		a := algorithms[i%len(algorithms)]
		hits = append(hits, limiter.Hit{Key: fmt.Sprint("many ", i), Policy: f.hourly(a, 2), N: 1})
	}
	f.want(strings.Repeat("+", n), hits...)
	f.want(strings.Repeat("+", n), hits...)
	f.want(strings.Repeat("-", n), hits...)
}

// changedAlign goes on with a count under another align: it is kept if its window started within the current one.
func changedAlign(f *fixture) {
	daily := func(align limiter.Align, loc *time.Location) limiter.Hit {
		return limiter.Hit{N: 1, Policy: policy(f, limiter.Params{
			Algorithm: limiter.FixedWindow, Limit: 1, Window: 24 * hour, Align: align, TimeZone: loc, ChargeDenied: limiter.ChargeNone,
		})}
	}
	utc, berlin := daily(limiter.AlignEpoch, nil), daily(limiter.AlignCalendar, zone("Europe/Berlin"))
	first := daily(limiter.AlignFirstHit, nil)
	f.clock.Advance(10 * hour) // 11:00 in Berlin
	f.want("+", utc)
	f.want("-", berlin)
	f.clock.Advance(13 * hour) // midnight
	f.want("-", utc)
	f.want("+", berlin)
	f.want("-", utc)
	f.want("-", first)
	f.clock.Advance(hour) // midnight of UTC: a window that started before it no longer counts
	f.want("-", berlin)
	f.want("-", first)
	f.want("+", utc)
}

// warmingUp is a policy that lets requests wait for 100 s.
func (f *fixture) warmingUp(limit int64, warmUp time.Duration, factor int64) *limiter.Policy {
	f.Helper()
	return policy(f, limiter.Params{
		Algorithm: limiter.SmoothWarmingUp, Limit: limit, Window: sec, WarmUp: warmUp, ColdFactor: factor, MaxWait: 100 * sec,
	})
}

// changedWarmUpExactly: the share is rounded as limiter's step does it.
func changedWarmUpExactly(f *fixture) {
	policies := []*limiter.Policy{
		f.warmingUp(7, hour, 0), f.warmingUp(997, hour, 0), f.warmingUp(1_000_000, hour, 150), f.warmingUp(31, 1000*sec, 299),
		f.warmingUp(9_973, 90*sec, limiter.MaxColdFactor),
	}
	known := reference{}
	for _, from := range policies {
		for _, to := range policies {
			for _, n := range []int64{1, 5, 4_321} {
				key := fmt.Sprint(from.Limit(), to.Limit(), n)
				for _, hit := range []limiter.Hit{{Key: key, Policy: from, N: n, Look: n == 0}, {Key: key, Policy: to, Look: true}} {
					want := make([]limiter.Decision, 1)
					known.take(f.clock.Now(), []limiter.Hit{hit}, want)
					if diff := cmp.Diff(want, f.take(hit)); diff != "" {
						f.Errorf("%d hits of %d per second, then %d per second: (-want +got)\n%s", n, from.Limit(), to.Limit(), diff)
					}
				}
			}
		}
	}
}

// changedWarmUp: a debt stays, and of what is in store the share, whatever unit a rule counts in.
func changedWarmUp(f *fixture) {
	with := f.warmingUp
	old := with(10, 10*sec, 0)
	f.waited([]time.Duration{0}, limiter.Hit{Key: "k", Policy: old, N: 75}) // 12.5 s, a quarter of the store stays
	for _, c := range []struct {
		to    *limiter.Policy
		reset time.Duration
	}{
		{old, 20 * sec},
		{with(9_973, 10*sec, 0), 20 * sec},
		{with(10, 60*sec, 0), 57_500 * ms},
		{with(10, 100*ms, 250), 12_575 * ms},
		{with(9_973, hour, limiter.MaxColdFactor), 2_712_500 * ms},
	} {
		d := f.take(limiter.Hit{Key: "k", Policy: c.to, Look: true})[0]
		if late := d.ResetAfter - c.reset; late < 0 || late > ms || !d.Allowed {
			f.Errorf("%d per second: %+v, want to be as new after %s", c.to.Limit(), d, c.reset)
		}
	}
	fast := with(9_973, 10*sec, 0)
	f.waited([]time.Duration{12_500 * ms}, limiter.Hit{Key: "k", Policy: fast, N: 1})
	f.clock.Advance(hour)
	if d := f.take(limiter.Hit{Key: "k", Policy: old, N: -1})[0]; d.ResetAfter != 0 {
		f.Errorf("an hour later: %+v, want it as new", d)
	}
}

// queue is a queue of one a second.
func (f *fixture) queue() *limiter.Policy {
	f.Helper()
	return policy(f, limiter.Params{Algorithm: limiter.LeakyQueue, Limit: 1, Window: sec, Burst: 10})
}

// waited checks how long each of the hits is to be held back.
func (f *fixture) waited(want []time.Duration, hits ...limiter.Hit) {
	f.Helper()
	got := make([]time.Duration, len(hits))
	for i, d := range f.take(hits...) {
		got[i] = d.Wait
	}
	if diff := cmp.Diff(want, got); diff != "" {
		f.Errorf("%s: waits (-want +got)\n%s", describe(hits), diff)
	}
}

// waits: each limit says its own, a key that occurs twice takes two turns, and a shadow takes them for itself.
func waits(f *fixture) {
	one := limiter.Hit{Key: "one", Policy: f.queue(), N: 1}
	other := limiter.Hit{Key: "other", Policy: f.queue(), N: 3}
	f.waited([]time.Duration{0, 0}, one, other)
	f.waited([]time.Duration{sec, 3 * sec}, one, other)
	f.waited([]time.Duration{2 * sec, 3 * sec}, one, one)
	f.waited([]time.Duration{0}, limiter.Hit{Key: "one", Policy: one.Policy, Look: true})
	f.clock.Advance(1500 * ms)
	one.Mode, other.Mode = limiter.Shadow, limiter.Quota
	f.waited([]time.Duration{2500 * ms, 4500 * ms}, one, other)
	bursty := policy(f, limiter.Params{
		Algorithm: limiter.SmoothBursty, Limit: 1, Window: sec, BurstFor: ms, MaxWait: 10 * sec,
	})
	f.waited([]time.Duration{0, 4999 * ms}, limiter.Hit{Key: "bursty", Policy: bursty, N: 5},
		limiter.Hit{Key: "bursty", Policy: bursty, N: 1})
}

// noWaitWhenDenied: what waits beside a denial does not wait, and takes no turn.
func noWaitWhenDenied(f *fixture) {
	one := limiter.Hit{Key: "one", Policy: f.queue(), N: 1}
	ban := limiter.Hit{Key: "ban", Policy: f.hourly(limiter.Funnel, 0), N: 1}
	f.waited([]time.Duration{0, sec}, one, one)
	f.waited([]time.Duration{0, 0, 0}, one, ban, one)
	f.waited([]time.Duration{2 * sec}, one)
	f.waited([]time.Duration{0}, limiter.Hit{Key: "one", Policy: one.Policy, N: 11})
	f.waited([]time.Duration{0}, limiter.Hit{Key: "one", Policy: one.Policy, N: -1})
	f.waited([]time.Duration{2 * sec}, one)
}

// emptyBesideDenial: a bucket fills from its first hit on, also if that request is denied by another limit.
func emptyBesideDenial(f *fixture) {
	for _, refill := range []limiter.Refill{limiter.RefillGreedy, limiter.RefillInterval} {
		p := policy(f, limiter.Params{
			Algorithm: limiter.TokenBucket, Limit: 1, Window: sec, Burst: 9, Initial: limiter.InitialEmpty, Refill: refill,
		})
		key := refill.String()
		f.want("--", limiter.Hit{Key: "ban", Policy: f.hourly(limiter.Funnel, 0), N: 1}, limiter.Hit{Key: key, Policy: p, N: 1})
		f.clock.Advance(3 * sec)
		f.remaining(key, p, 3)
	}
}

func doneContext(f *fixture) {
	ctx, cancel := context.WithCancel(f.Context())
	cancel()
	hits := []limiter.Hit{{Key: "k", Policy: f.hourly(limiter.Funnel, 1), N: 1}}
	began := time.Now()
	if err := f.store.Take(ctx, hits, make([]limiter.Decision, 1)); err != nil && !errors.Is(err, limiter.ErrUnavailable) {
		f.Errorf("Take with a done context: %v, which does not wrap ErrUnavailable", err)
	}
	if took := time.Since(began); took > time.Second {
		f.Errorf("Take with a done context returned after %s", took)
	}
}

// workers is how many goroutines the concurrent parts run.
const workers = 64

// concurrent asks for twice of what a key has.
func concurrent(f *fixture) {
	for _, a := range every {
		const capacity = 1000
		p, may := f.hourly(a, capacity), int64(capacity)
		switch a {
		case limiter.SmoothBursty:
			may = 1 // what a second brings is less than one
		case limiter.SmoothWarmingUp:
			may = 1 // nothing is free
		case limiter.LeakyQueue:
			may = capacity + 1 // one departs, the others wait
		default:
		}
		var admitted atomic.Int64
		f.parallel(2*capacity/workers+1, func(_, _ int) ([]limiter.Hit, func([]limiter.Decision)) {
			return []limiter.Hit{{Key: a.String(), Policy: p, N: 1}}, func(out []limiter.Decision) {
				if out[0].Allowed {
					admitted.Add(1)
				}
			}
		})
		if got := admitted.Load(); got != may {
			f.Errorf("%s: %d of %d hits were admitted where %d may pass", a, got, 2*capacity, may)
		}
	}
}

// concurrentSeveral asks for three of five keys in every order. What was admitted must be what is missing.
func concurrentSeveral(f *fixture) {
	const capacity, of = 300, 5
	var policies [of]*limiter.Policy
	var admitted [of]atomic.Int64
	for i := range policies {
		policies[i] = policy(f, limiter.Params{
			Algorithm: algorithms[i], Limit: capacity + int64(i), Window: time.Hour, ChargeDenied: limiter.ChargeNone,
		})
	}
	f.parallel(30, func(worker, round int) ([]limiter.Hit, func([]limiter.Decision)) {
		var hits []limiter.Hit
		for i := range 3 {
			k := (worker + (round%4+1)*i) % of
			hits = append(hits, limiter.Hit{Key: fmt.Sprint("several ", k), Policy: policies[k], N: 1})
		}
		return hits, func(out []limiter.Decision) {
			if !limiter.Admitted(hits, out) {
				return
			}
			for i := range hits {
				admitted[(worker+(round%4+1)*i)%of].Add(1)
			}
		}
	})
	for i, p := range policies {
		f.remaining(fmt.Sprint("several ", i), p, p.Limit()-admitted[i].Load())
	}
}

// parallel has every worker decide rounds requests.
func (f *fixture) parallel(rounds int, request func(worker, round int) ([]limiter.Hit, func([]limiter.Decision))) {
	f.Helper()
	var wait sync.WaitGroup
	for w := range workers {
		wait.Go(func() {
			for r := range rounds {
				hits, done := request(w, r)
				out := make([]limiter.Decision, len(hits))
				if err := f.store.Take(f.Context(), hits, out); err != nil {
					f.Errorf("Take(%s): %v", describe(hits), err)
					return
				}
				done(out)
			}
		})
	}
	wait.Wait()
}
