package limitertest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Fresh returns an empty store whose time is the clock's, and closes the store with t.Cleanup.
type Fresh func(t *testing.T, clock *Clock) limiter.Store

// Run checks the contract of a store, each part on a new store.
func Run(t *testing.T, fresh Fresh) {
	t.Helper()
	parts := []struct {
		name  string
		check func(f *fixture)
	}{
		{"no hits", noHits},
		{"hits that nobody can decide", invalidHits},
		{"ban", ban},
		{"clock steps back on a limit with room", clockStepsBackWithRoom},
		{"keys", keys},
		{"many hits", manyHits},
		{"done context", doneContext},
		{"concurrent requests of several keys", concurrentSeveral},
	}
	for _, p := range parts {
		t.Run(p.name, func(t *testing.T) { p.check(newFixture(t, fresh)) })
	}
	runScenarios(t, fresh)
	t.Run("changed rule", func(t *testing.T) { runChanges(t, fresh) })
}

// fixture is a store under test and the clock of the store.
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

// policy returns the policy of valid parameters.
func policy(tb testing.TB, in limiter.Params) *limiter.Policy {
	tb.Helper()
	in.DenyAll = in.Limit == 0 // in tests, a limit of 0 is intended
	p, err := limiter.NewPolicy(in)
	if err != nil {
		tb.Fatalf("NewPolicy(%+v): %v", in, err)
	}
	return p
}

// hourly returns a policy of limit hits per hour.
func (f *fixture) hourly(a limiter.Algorithm, limit int64) *limiter.Policy {
	f.Helper()
	return policy(f, limiter.Params{Algorithm: a, Limit: limit, Window: time.Hour})
}

var algorithms = []limiter.Algorithm{
	limiter.FixedWindow, limiter.Funnel, limiter.TokenBucket, limiter.SlidingWindow, limiter.SlidingLog,
}

// every holds all algorithms.
var every = limiter.Algorithms()

// counting holds the algorithms that admit Limit hits at once.
var counting = append(slices.Clone(algorithms), limiter.Concurrency)

// take decides a request of the hits.
func (f *fixture) take(hits ...limiter.Hit) []limiter.Decision {
	f.Helper()
	out := make([]limiter.Decision, len(hits))
	if err := f.store.Take(f.Context(), hits, out); err != nil {
		f.Fatalf("Take(%s): %v", describe(hits), err)
	}
	return out
}

// want takes the hits and checks which of them fit, as + or -.
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

// remaining checks the Remaining of a key with a peek.
func (f *fixture) remaining(key string, p *limiter.Policy, want int64) {
	f.Helper()
	if d := f.take(limiter.Hit{Key: key, Policy: p, Peek: true})[0]; d.Remaining != want {
		f.Errorf("%s of %q: %d hits remain, want %d", p.Algorithm(), key, d.Remaining, want)
	}
}

func describe(hits []limiter.Hit) string {
	parts := make([]string, len(hits))
	for i, h := range hits {
		parts[i] = fmt.Sprintf("%s %+d %s", h.Key, h.N, [...]string{"enforce", "shadow", "quota"}[h.Mode])
		if h.ByItself {
			parts[i] += " by itself"
		}
		if h.TakenAt != 0 {
			parts[i] += fmt.Sprint(" taken at ", h.TakenAt, " or oldest: ", h.OrOldest)
		}
	}
	return strings.Join(parts, ", ")
}

// workers is the number of goroutines of a concurrent part.
const workers = 64
