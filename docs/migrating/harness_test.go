// Package migrating holds the pages that lead from other limiters to Weir, and these tests: the rule of each page is
// the one that its table of settings makes, and it decides as the other limiter's documented arithmetic does.
package migrating

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

func TestMain(m *testing.M) { casetest.Main(m, 300) }

var fence = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$")

// onPage checks that the page has a rule with a limit of that name, and that it is the one of the parameters.
func onPage(t *testing.T, page, name string, in limiter.Params) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	want := newPolicy(t, in)
	for _, block := range fence.FindAllStringSubmatch(string(text), -1) {
		if !strings.HasPrefix(block[1], "domain:") {
			continue
		}
		set, err := rulefile.Compile([]rulefile.File{{Name: page, Data: []byte(block[1])}})
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range set.Limits() {
			if l.Name != name {
				continue
			}
			if limit.Identity(l.Policy) != limit.Identity(want) {
				t.Fatalf("%s: %s is %+v, want %+v", page, name, l.Policy.Params(), want.Params())
			}
			return
		}
	}
	t.Fatalf("%s has no limit with the name %s", page, name)
}

// fataler is a testing.T or a rapid.T.
type fataler interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

func newPolicy(t fataler, in limiter.Params) *limiter.Policy {
	t.Helper()
	p, err := limiter.NewPolicy(in)
	if err != nil {
		t.Fatalf("%+v: %v", in, err)
	}
	return p
}

// start is a whole number of days, in microseconds since the Unix epoch.
const start = 19_700 * int64(24*time.Hour/time.Microsecond)

// history sends random requests to a policy in virtual time.
type history struct {
	*rapid.T

	policy *limiter.Policy
	state  storekit.State
	now    int64 // microseconds since the Unix epoch
	tick   time.Duration
}

// newHistory begins a history whose requests come at multiples of tick.
func newHistory(t *rapid.T, in limiter.Params, tick time.Duration) *history {
	return &history{T: t, policy: newPolicy(t, in), now: start, tick: tick}
}

// move lets time pass: none, a few ticks, up to what is given, or exactly that.
func (h *history) move(most time.Duration) {
	ticks := max(1, int(most/h.tick))
	n := rapid.OneOf(
		rapid.Just(0), rapid.IntRange(0, min(3, ticks)), rapid.IntRange(0, max(1, ticks/10)), rapid.IntRange(0, ticks),
		rapid.Just(ticks),
	).Draw(h.T, "ticks")
	h.now += (time.Duration(n) * h.tick).Microseconds()
}

// ask sends a request that costs n hits.
func (h *history) ask(n int64) limiter.Decision {
	var d limiter.Decision
	h.state, d = storekit.Step(h.policy, h.state, h.now, n)
	return d
}

// requests draws how many requests a history has.
func (h *history) requests() int { return rapid.IntRange(1, 60).Draw(h.T, "requests") }

// since is the time of the history as the other limiter counts it.
func (h *history) since(unit time.Duration) int64 { return h.now / unit.Microseconds() }

func between[T int64 | time.Duration](t fataler, what string, got, low, high T) {
	t.Helper()
	if got < low || got > high {
		t.Fatalf("%s is %v, want from %v to %v", what, got, low, high)
	}
}
