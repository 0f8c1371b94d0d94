package decide_test

import (
	"cmp"
	"context"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// TestReservationsKeepTheirBound plays requests of two keys whose ends are late, lost or sent twice, with edited rules,
// lost counters, callers that leave, and a store that fails before or after it has decided. It checks the bound of
// casetest.Ledger.
func TestReservationsKeepTheirBound(t *testing.T) {
	t.Run("in memory", func(t *testing.T) { playHistories(t, &player{T: t}, 60) })
	t.Run("in redis", func(t *testing.T) { playHistories(t, &player{T: t, redis: redistest.Start(t).URL()}, 12) })
	t.Run("in a cluster", func(t *testing.T) {
		playHistories(t, &player{T: t, redis: redistest.StartCluster(t, 3).URL()}, 6)
	})
}

func playHistories(t *testing.T, p *player, checks int) {
	t.Helper()
	const hour = int64(time.Hour / time.Microsecond)
	store := &failing{Store: p.store()}
	for i, algorithm := range []string{
		"fixed_window", "fixed_window, align: first_hit", "sliding_window", "sliding_log", "funnel", "token_bucket",
	} {
		history := 0
		casetest.Check(t, checks, func(rt *rapid.T) {
			history++
			p.clock.Add(hour - p.clock.Load()%hour)
			newLife(rt, p, store, algorithm, fmt.Sprintf("%d.%d.", i, history)).play()
		})
	}
}

// failing is a store that fails the next call before or after it decides, if one of these is set.
type failing struct {
	limiter.Store
	before, after bool
}

func (s *failing) Take(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) (err error) {
	before, after := s.before, s.after
	if s.before, s.after = false, false; !before {
		err = s.Store.Take(ctx, hits, out)
	}
	if before || after {
		err = limiter.ErrUnavailable
	}
	return err
}

// life is one history.
type life struct {
	*rapid.T
	p         *player
	store     *failing
	algorithm string
	keys      []string // two values of the rule's key
	mode      string
	set       *descriptors.Set
	decider   *decide.Decider
	ledgers   map[string]*casetest.Ledger
	started   []*startedRequest
}

// startedRequest is a request that is to report its end.
type startedRequest struct {
	keys  []string
	token string
	spent int64
	notes map[string]*casetest.Request // by key; none of a request that was denied or decided without the store
}

func newLife(rt *rapid.T, p *player, store *failing, algorithm, prefix string) *life {
	l := &life{
		T: rt, p: p, store: store, algorithm: algorithm, keys: []string{prefix + "a", prefix + "b"},
		mode: rapid.SampledFrom([]string{"", "shadow_mode: true, ", "quota_mode: true, "}).Draw(rt, "mode"),
	}
	*store = failing{Store: store.Store}
	l.edit(1000)
	var err error
	l.decider, err = decide.New(decide.Options{
		Config: decide.Config{ChargeEach: rapid.IntRange(0, 3).Draw(rt, "charge each") == 0},
		Rules:  func() *descriptors.Set { return l.set }, Store: store,
	})
	if err != nil {
		rt.Fatal(err)
	}
	l.ledgers = map[string]*casetest.Ledger{}
	for _, key := range l.keys {
		l.ledgers[key] = casetest.NewLedger(l.policy())
	}
	return l
}

func (l *life) edit(requests int64) {
	l.set = casetest.Compile(l.p.T, fmt.Sprintf("domain: shop\ndescriptors:\n- {key: k, %srate_limit: {algorithm: %s, "+
		"requests_per_unit: %d, unit: minute, reservation: {estimate: 50, at_most: 300}}}\n", l.mode, l.algorithm, requests))
	for _, ledger := range l.ledgers {
		ledger.Edit(l.p.clock.Load(), l.policy())
	}
}

func (l *life) limit() *descriptors.Limit { return l.set.Domain("shop").Rules()[0].Limits[0] }
func (l *life) policy() *limiter.Policy   { return l.limit().Policy }

func (l *life) play() {
	isCalm := rapid.Bool().Draw(l.T, "calm")
	for range rapid.IntRange(20, 100).Draw(l.T, "steps") {
		l.p.clock.Add(rapid.SampledFrom([]int64{0, 0, 0, 0, 1, 1000, 1_000_000, 7_654_321, 40_000_000}).Draw(l.T, "passed"))
		l.store.before = !isCalm && rapid.IntRange(0, 15).Draw(l.T, "fails before") == 0
		l.store.after = !isCalm && rapid.IntRange(0, 15).Draw(l.T, "fails after") == 0
		switch op := rapid.IntRange(0, 19).Draw(l.T, "op"); {
		case op < 11:
			l.start()
		case op < 17 && len(l.started) > 0:
			l.end(rapid.SampledFrom(l.started).Draw(l.T, "ends"))
		case isCalm:
		case op == 17:
			l.edit(rapid.SampledFrom([]int64{300, 500, 1000}).Draw(l.T, "limit"))
		case op == 18:
			l.reset()
		}
	}
	for key, ledger := range l.ledgers {
		if err := ledger.Check(); err != nil {
			l.Fatalf("%s %s: %s: %v", l.algorithm, l.mode, key, err)
		}
	}
}

func (l *life) reset() {
	for _, key := range l.keys[rapid.IntRange(0, 1).Draw(l.T, "kept"):] {
		counter := l.limit().AppendKey(nil, []descriptors.Entry{{Key: "k", Value: key}})
		if err := l.p.reset(string(counter)); err != nil {
			l.Fatal(err)
		}
		l.ledgers[key].Lose(l.p.clock.Load())
	}
}

func (l *life) start() {
	s := &startedRequest{
		keys:  rapid.SliceOfN(rapid.SampledFrom(l.keys), 1, 3).Draw(l.T, "keys"),
		spent: rapid.SampledFrom([]int64{0, 0, 49, 50, 51, 200, 300, 301}).Draw(l.T, "spent"),
		notes: map[string]*casetest.Request{},
	}
	hint := rapid.SampledFrom([]string{"", "x", "60", "300", "300", "1e9"}).Draw(l.T, "hint")
	v := l.decide(s, decide.HintKey, hint, 1)
	held, isGone := v.TakeHeld(), rapid.IntRange(0, 7).Draw(l.T, "gone") == 0
	if !isGone {
		held.Keep()
	}
	held.Release(l.p.Context())
	if _, s.token = v.Start(); v.Denied {
		s.spent = 0
	}
	for i := range v.Hits {
		key := s.keys[i]
		if h, at := &v.Hits[i], v.Decisions[i].TakenAt; !isGone && !v.Denied && !v.Failed() && s.notes[key] == nil {
			charged := h.N
			if at == 0 { // it did not fit, and passed because of its mode
				charged = 0
			}
			s.notes[key] = l.ledgers[key].Start(l.p.clock.Load(), charged, s.spent, at)
		}
	}
	if !isGone {
		l.started = append(l.started, s)
	}
}

func (l *life) end(s *startedRequest) {
	isLost := l.store.before
	if v := l.decide(s, decide.StartKey, cmp.Or(s.token, "none"), s.spent); v.Denied {
		l.Fatalf("an end is denied: %+v", v)
	}
	if isLost {
		return
	}
	for key, note := range s.notes {
		l.ledgers[key].End(note, l.p.clock.Load())
	}
}

// decide decides a request with this entry.
func (l *life) decide(s *startedRequest, key, value string, cost int64) *decide.Verdict {
	r := l.decider.NewRequest()
	r.Domain = "shop"
	for _, k := range s.keys {
		r.Add(decide.Descriptor{Cost: cost, Entries: []descriptors.Entry{{Key: "k", Value: k}, {Key: key, Value: value}}})
	}
	v, err := decided(l.p.Context(), l.decider, r)
	if err != nil {
		l.Fatal(err)
	}
	return v
}
