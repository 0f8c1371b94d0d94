package limitertest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

// Histories decides the same random requests with a store and with storekit.Decide over a map, and checks that they
// agree in every field of every decision. It makes that many requests for each algorithm and for a mix of all of them.
// The requests are the same in every run, and cover hard cases: extreme policies; clocks that stand still, step to
// exactly where a decision changes, jump by years or step back; peeks, refunds and debts; several hits, some with equal
// keys; and rules that change under a counter. Each rule replaces every other rule, or a third of them for under 300
// requests.
func Histories(t *testing.T, fresh Fresh, requests int) {
	t.Helper()
	runHistories(t, fresh, requests, false, every)
}

// HistoriesInTwoSteps is Histories for a store that decides a request in two steps if its keys are on several servers.
// The second step takes back what the first step charged for a denied request. This leaves no trace if the clock does
// not step back, rules do not change, and all hits of a request with one key have the same mode and sign, so these
// histories keep to that. They leave out LeakyQueue and SmoothWarmingUp, whose ResetAfter shows a trace.
func HistoriesInTwoSteps(t *testing.T, fresh Fresh, requests int) {
	t.Helper()
	traceless := slices.DeleteFunc(slices.Clone(every), func(a limiter.Algorithm) bool {
		return a == limiter.LeakyQueue || a == limiter.SmoothWarmingUp
	})
	runHistories(t, fresh, requests, true, traceless)
}

func runHistories(t *testing.T, fresh Fresh, requests int, twoSteps bool, of []limiter.Algorithm) {
	t.Helper()
	for _, a := range of {
		t.Run(a.String(), func(t *testing.T) {
			h := newHistory(t, fresh, uint64(a), []limiter.Algorithm{a})
			h.twoSteps = twoSteps
			h.run(requests)
			every := 1
			if requests < allPairsFrom {
				every = 3
			}
			h.eachRuleIntoEach(a, every)
			t.Logf("%d histories", h.histories)
		})
	}
	t.Run("mixed", func(t *testing.T) {
		h := newHistory(t, fresh, 100, of)
		h.twoSteps = twoSteps
		h.run(requests)
	})
}

// reference is a store that only calls storekit.Decide.
type reference map[string]storekit.State

func (r reference) take(now int64, hits []limiter.Hit, out []limiter.Decision) (admitted bool) {
	counters := make([]storekit.Counter, len(hits))
	if err := storekit.Link(hits, out, counters); err != nil {
		panic(err)
	}
	for i := range hits {
		counters[i].State = r[hits[i].Key]
	}
	admitted = storekit.Decide(storekit.Clocks{Steady: now, Wall: now}, hits, counters, out)
	for i := range hits {
		if counters[i].Changed {
			r[hits[i].Key] = counters[i].Next
		}
	}
	return admitted
}

// generationLength is the number of requests after which a history uses new keys.
const generationLength = 300

// history is one random sequence of requests.
type history struct {
	*testing.T
	seed       uint64
	twoSteps   bool // see HistoriesInTwoSteps
	rng        *rand.Rand
	clock      *Clock
	store      limiter.Store
	reference  reference
	algorithms []limiter.Algorithm
	pools      map[limiter.Algorithm][]*limiter.Policy
	names      map[*limiter.Policy]string // parameters of each policy, for messages
	counters   []*counter
	log        []string // requests and decisions, for messages
	steps      int      // number of requests so far
	histories  int      // number of sets of new keys so far
}

// counter is a key of the history, with its last decision.
type counter struct {
	key    string
	policy *limiter.Policy
	last   limiter.Decision
	taken  []int64 // the last TakenAt values, the newest last
}

func newHistory(t *testing.T, fresh Fresh, seed uint64, algorithms []limiter.Algorithm) *history {
	t.Helper()
	clock := NewClock()
	h := &history{
		T: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 0)), clock: clock, store: fresh(t, clock),
		reference: reference{}, algorithms: algorithms,
		pools: map[limiter.Algorithm][]*limiter.Policy{}, names: map[*limiter.Policy]string{},
	}
	for _, a := range algorithms {
		if len(extremes[a]) == 0 {
			t.Fatalf("extremes has no policies of %s: add some to limitertest/histories.go", a)
		}
		for _, in := range extremes[a] {
			in.Algorithm = a
			for _, in.ChargeDenied = range charges {
				if in.Reserve > 0 && in.ChargeDenied == limiter.ChargeRemaining { // no policy
					in.ChargeDenied = limiter.ChargeNone
				}
				p := policy(t, in)
				h.pools[a] = append(h.pools[a], p)
				h.names[p] = fmt.Sprintf("%+v", in)
			}
		}
	}
	return h
}

// charges are the values of ChargeDenied. The last one makes debt.
var charges = []limiter.ChargeDenied{limiter.ChargeNone, limiter.ChargeRemaining, limiter.ChargeFull}

const (
	us   = time.Microsecond
	ms   = time.Millisecond
	sec  = time.Second
	hour = time.Hour
	year = 365 * 24 * time.Hour
)

// zone returns the time zone, or nil, which means UTC, if it is not installed.
func zone(name string) *time.Location {
	loc, err := time.LoadLocation(name)
	if err != nil {
		return nil
	}
	return loc
}

// extremes are the policies of the histories, each with every ChargeDenied.
var extremes = map[limiter.Algorithm][]limiter.Params{
	limiter.FixedWindow: {
		{Limit: 1, Window: year},
		{Limit: 10_000_000, Window: sec},
		{Limit: 1 << 31, Window: step.MaxWindow},
		{Limit: step.MaxLimit, Window: step.MinWindow},
		{Limit: 7, Window: 1_000_003 * us},
		{Limit: 3, Window: 90 * sec, Align: limiter.AlignFirstHit},
		{Limit: 5, Window: 1234567 * us, Align: limiter.AlignFirstHit},
		{Limit: 5, Window: hour, Align: limiter.AlignCalendar, TimeZone: zone("Australia/Lord_Howe")},
		{Limit: step.MaxLimit, Window: 24 * hour, Align: limiter.AlignCalendar, TimeZone: zone("Europe/Berlin")},
		{Limit: 3, Window: 7 * 24 * hour, Align: limiter.AlignCalendar, TimeZone: zone("America/St_Johns")},
		{Limit: 3, Window: 30 * 24 * hour, Align: limiter.AlignCalendar},
		{Limit: 3, Window: year, Align: limiter.AlignCalendar, TimeZone: zone("Asia/Beirut")},
		{DenyAll: true, Window: year, Align: limiter.AlignCalendar, TimeZone: zone("Asia/Beirut")},
		{DenyAll: true, Window: sec},
		{DenyAll: true, Window: sec, PeekAtLimit: true},
		{Limit: 4, Window: sec, PeekAtLimit: true},
		{Limit: 4, Window: 7 * 24 * hour, Align: limiter.AlignCalendar, TimeZone: zone("Europe/Berlin"), PeekAtLimit: true},
		{Limit: 10_000_000, Window: sec, Reserve: 5_000_000},
		{Limit: 5, Window: 1234567 * us, Align: limiter.AlignFirstHit, Reserve: 5},
		{Limit: 4, Window: 24 * hour, Align: limiter.AlignCalendar, TimeZone: zone("Europe/Berlin"), Reserve: 1},
	},
	limiter.Funnel: funnels,
	limiter.TokenBucket: append([]limiter.Params{
		{Limit: 3, Window: 7 * sec, Burst: 5, StartsEmpty: true},
		{Limit: 1, Window: year, StartsEmpty: true},
		{Limit: 999_999_937, Window: hour, Burst: 100_000, StartsEmpty: true},
		{Limit: 10_000_000, Window: sec, Burst: 5, StartsEmpty: true},
		{Limit: 4, Window: 10 * sec, Burst: 10, RefillsAtOnce: true},
		{Limit: 4, Window: 10 * sec, Burst: 10, RefillsAtOnce: true, StartsEmpty: true},
		{Limit: 10_000_000, Window: step.MinWindow, RefillsAtOnce: true},
		{Limit: 1, Window: step.MaxWindow, Burst: 3, RefillsAtOnce: true},
	}, funnels...),
	limiter.SmoothBursty: {
		{Limit: 5, Window: sec},
		{Limit: 7, Window: 3 * sec, BurstFor: 2500 * ms, MaxWait: 500 * ms},
		{Limit: 1, Window: year},
		{Limit: 10_000_000, Window: sec, MaxWait: ms},
		{Limit: 999_999_937, Window: hour, MaxWait: hour},
		{Limit: 1<<32 - 1, Window: step.MinWindow},
		{Limit: 5, Window: sec, StartsEmpty: true, MaxCost: 12},
		{
			Limit: 7, Window: 3 * sec, BurstFor: 2500 * ms, MaxWait: 500 * ms, StartsEmpty: true,
			MaxCost: step.MaxCost,
		},
		{DenyAll: true, Window: sec},
	},
	limiter.LeakyQueue: {
		{Limit: 5, Window: sec},
		{Limit: 5, Window: sec, MaxWait: 300 * ms},
		{Limit: 7, Window: 3 * sec, Burst: 2, MaxWait: hour},
		{Limit: 1, Window: year, Burst: 1},
		{Limit: 10_000_000, Window: sec, MaxWait: ms},
		{Limit: 999_999_937, Window: hour, Burst: 100_000},
		{Limit: 1<<32 - 1, Window: step.MinWindow},
		{DenyAll: true, Window: sec},
	},
	limiter.SmoothWarmingUp: {
		{Limit: 5, Window: sec},
		{Limit: 7, Window: 3 * sec, WarmUp: 2500 * ms, ColdFactor: 250, MaxWait: 500 * ms},
		{Limit: 1, Window: year, WarmUp: hour},
		{Limit: 10_000_000, Window: sec, WarmUp: 60 * sec, MaxWait: ms},
		{Limit: 9_973, Window: sec, WarmUp: 90 * sec, ColdFactor: step.MaxColdFactor, MaxWait: sec},
		{Limit: 3, Window: sec, WarmUp: sec, ColdFactor: 101, MaxWait: hour},
		{Limit: 1, Window: 60 * sec, WarmUp: ms},
		{Limit: 5, Window: sec, WarmUp: 2 * sec, MaxCost: 3},
		{Limit: 5, Window: sec, MaxCost: step.MaxCost},
		{Limit: 999_999_937, Window: hour, WarmUp: 20 * sec, MaxWait: hour},
		{Limit: 1<<32 - 1, Window: step.MinWindow},
		{DenyAll: true, Window: sec},
	},
	limiter.Concurrency: {
		{Limit: 1, Window: year},
		{Limit: 3, Window: 10 * sec},
		{Limit: 300, Window: step.MinWindow},
		{Limit: 10_000, Window: 60 * sec},
		{DenyAll: true, Window: sec},
	},
	limiter.SlidingWindow: {
		{Limit: 1, Window: year},
		{Limit: 10_000_000, Window: sec},
		{Limit: 1 << 31, Window: hour, Segments: 60},
		{Limit: 7, Window: hour, Segments: 60}, // has finer ticks than the policy above, so a segment counts less
		{Limit: step.MaxLimit, Window: step.MinWindow, Segments: 1000},
		{Limit: 1<<32 - 1, Window: 24 * hour, Segments: 24, Oldest: limiter.OldestFull},
		{Limit: 7, Window: 1_000_003 * us, Segments: 1},
		{Limit: 10, Window: 10 * sec},
		{Limit: 10, Window: 10 * sec, Oldest: limiter.OldestFull},
		{Limit: 10, Window: 10 * sec, Oldest: limiter.OldestNone, SegmentCap: 2},
		{Limit: 10, Window: 6 * sec, Segments: 3, SegmentCap: 5},
		{Limit: 100, Window: 3 * sec, Segments: 1},
		{Limit: 1_000_000_000_000, Window: 24 * hour, Segments: 24}, // bytes
		{Limit: 10, Window: 10 * sec, Reserve: 10},
		{Limit: 10, Window: 6 * sec, Segments: 3, Oldest: limiter.OldestNone, Reserve: 1},
		{Limit: 1 << 31, Window: hour, Segments: 60, Oldest: limiter.OldestFull, Reserve: 1 << 30},
		{DenyAll: true, Window: sec},
	},
	limiter.SlidingLog: {
		{Limit: 1, Window: year},
		{Limit: 10_000, Window: sec},
		{Limit: 300, Window: step.MinWindow},
		{Limit: 7, Window: 1_000_003 * us},
		{Limit: 3, Window: 10 * sec},
		{Limit: 1_000_000, Window: step.MaxWindow, MaxLogEntries: 1_000_000},
		{Limit: 3, Window: 10 * sec, Reserve: 3},
		{Limit: 10_000, Window: sec, Reserve: 1},
		{DenyAll: true, Window: sec},
	},
}

var funnels = []limiter.Params{
	{Limit: 1, Window: year},
	{Limit: 1, Window: step.MaxWindow, Burst: 3},
	{Limit: 10_000_000, Window: sec},
	{Limit: 10_000_000, Window: sec, Burst: 1},
	{Limit: 1 << 31, Window: sec, Burst: 1 << 31},
	{Limit: 1<<32 - 1, Window: step.MinWindow, Burst: 1<<32 - 1},
	{Limit: 3, Window: sec, Burst: 2},
	{Limit: 30, Window: 60 * sec, Burst: 15},
	{Limit: 7, Window: 1_000_003 * us, Burst: 5},
	{Limit: 999_999_937, Window: hour, Burst: 100_000}, // counted in coarser ticks
	{Limit: 1, Window: 24 * hour, Burst: 100},
	{Limit: 100_000_000_000, Window: 24 * hour, Burst: 10_000_000_000}, // bytes
	{Limit: 3, Window: sec, Burst: 2, Reserve: 1},
	{Limit: 999_999_937, Window: hour, Burst: 100_000, Reserve: 50_000},                   // ticks of a millisecond
	{Limit: 999_999_937, Window: 24 * hour, Burst: 1_000_000_000, Reserve: 1_000_000_000}, // ticks of a second
	{DenyAll: true, Window: sec},
}

func (h *history) run(requests int) {
	for step := range requests {
		if step%generationLength == 0 {
			h.begin(h.newKeys())
		}
		h.moveClock()
		hits, of := h.request()
		h.decide(hits, of)
	}
}

// allPairsFrom is the number of requests from which on every rule replaces every other rule.
const allPairsFrom = 300

// eachRuleIntoEach makes each extreme policy take over a fully charged counter from each other, or every third one.
func (h *history) eachRuleIntoEach(a limiter.Algorithm, every int) {
	pool, variants := h.pools[a], len(charges)
	for i := variants - 1; i < len(pool); i += variants {
		for j := range len(pool) / variants {
			from, to := pool[i], pool[j*variants+(i/variants+j)%variants]
			if (i/variants+2*j)%every != 0 || !sameCounter(from, to) {
				continue
			}
			c := &counter{key: fmt.Sprintf("%d/%d into %d", h.seed, i, j), policy: from}
			h.begin([]*counter{c})
			for range 3 {
				h.decide([]limiter.Hit{{Key: c.key, Policy: from, N: limiter.MaxHits}}, h.counters)
				h.clock.Advance(h.upTo(to.Window() / 2))
			}
			c.policy = to
			h.decide([]limiter.Hit{{Key: c.key, Policy: to, Peek: true}}, h.counters)
			for range 6 {
				h.decide([]limiter.Hit{h.hit(c)}, h.counters)
				h.moveClock()
			}
		}
	}
}

// begin continues the history with other counters.
func (h *history) begin(counters []*counter) {
	h.counters, h.log = counters, nil
	if h.twoSteps && h.clock.Now() > halfway {
		h.clock.Set(start)
	}
	h.histories++
}

// decide compares the decisions for one request; of are the counters of its hits.
func (h *history) decide(hits []limiter.Hit, of []*counter) {
	h.Helper()
	h.steps++
	want, got := make([]limiter.Decision, len(hits)), make([]limiter.Decision, len(hits))
	admitted := h.reference.take(h.clock.Now(), hits, want)
	if err := h.store.Take(h.Context(), hits, got); err != nil {
		h.Fatalf("seed %d, step %d: %v", h.seed, h.steps, err)
	}
	h.record(hits, want)
	for i := range hits {
		if got[i] != want[i] {
			h.report(i, hits, want[i], got[i])
		}
		of[i].last = got[i]
		if got[i].TakenAt != 0 {
			of[i].taken = append(of[i].taken[max(0, len(of[i].taken)-4):], got[i].TakenAt)
		}
	}
	if limiter.Admitted(hits, got) != admitted {
		h.Fatalf("seed %d, step %d: admitted is %t, want %t", h.seed, h.steps, !admitted, admitted)
	}
}

// sameCounter reports whether a counter is kept if its rule changes from one policy to the other.
func sameCounter(from, to *limiter.Policy) bool {
	return from.Params().RefillsAtOnce == to.Params().RefillsAtOnce
}

// newKeys returns six new counters.
func (h *history) newKeys() (counters []*counter) {
	for i := range 6 {
		c := &counter{key: fmt.Sprintf("%d/%d/%d", h.seed, h.histories, i)}
		a := h.algorithms[h.rng.IntN(len(h.algorithms))]
		c.policy = h.pools[a][h.rng.IntN(len(h.pools[a]))]
		counters = append(counters, c)
	}
	return counters
}

// farthest is the latest time of the clock, so far below 2^53 microseconds that a policy may add its times.
const (
	farthest = start + 50*int64(year/us)
	halfway  = start + 25*int64(year/us)
)

// moveClock moves the time: not at all, a little, to where a decision changes, far, or back.
func (h *history) moveClock() {
	c := h.counters[h.rng.IntN(len(h.counters))]
	window := c.policy.Window()
	var d time.Duration
	switch r := h.rng.IntN(100); {
	case r < 35:
	case r < 50:
		d = time.Duration(h.rng.IntN(5)) * us
	case r < 60:
		d = h.upTo(window)
	case r < 75:
		d = c.last.RetryAfter + time.Duration(h.rng.IntN(3)-1)*us
	case r < 80:
		d = c.last.ResetAfter + time.Duration(h.rng.IntN(3)-1)*us
	case r < 85 && limit.Edges(c.policy, h.clock.Now()) != nil: // to the edge of a window
		edges := limit.Edges(c.policy, h.clock.Now())
		d = time.Duration(edges[h.rng.IntN(len(edges))]-h.clock.Now()+int64(h.rng.IntN(3)-1)) * us
	case r < 85: // to the edge of a window or a segment
		edge := int64(window/us) / []int64{1, 10}[h.rng.IntN(2)]
		d = time.Duration(edge-h.clock.Now()%edge+int64(h.rng.IntN(3)-1)) * us
	case r < 88:
		d = 2 * window
	case r < 90:
		d = h.upTo(2 * year)
	case r < 94:
		d = -time.Duration(1+h.rng.IntN(5)) * us
	case r < 97:
		d = -h.upTo(window)
	case r < 98:
		d = -h.upTo(year)
	}
	if d < -year || d > 20*year {
		return
	}
	if h.twoSteps && (d < 0 || h.clock.Now()+d.Microseconds() > farthest) {
		return
	}
	h.clock.Advance(d)
	if now := h.clock.Now(); now < start || now > farthest {
		h.clock.Set(start)
	}
}

// upTo returns a random duration of whole microseconds, at most d.
func (h *history) upTo(d time.Duration) time.Duration {
	return time.Duration(h.rng.Int64N(int64(d/us)+1)) * us
}

// request returns one to five hits and their counters.
func (h *history) request() ([]limiter.Hit, []*counter) {
	n := 1
	if h.rng.IntN(10) < 4 {
		n = 2 + h.rng.IntN(4)
	}
	if h.rng.IntN(50) == 0 && !h.twoSteps { // a rule changes
		c := h.counters[h.rng.IntN(len(h.counters))]
		pool := h.pools[c.policy.Algorithm()]
		if p := pool[h.rng.IntN(len(pool))]; sameCounter(c.policy, p) {
			c.policy = p
		}
	}
	hits, of := make([]limiter.Hit, n), make([]*counter, n)
	defer func() {
		hits[0].ByItself = h.rng.IntN(4) == 0
	}()
	for i := range hits {
		c := h.counters[h.rng.IntN(len(h.counters))]
		hits[i] = h.hit(c)
		hits[i].Mode, hits[i].Group = h.mode(), i
		of[i] = c
		if i > 0 && h.rng.IntN(3) == 0 { // another limit of the same descriptor
			hits[i].Mode, hits[i].Group = hits[i-1].Mode, hits[i-1].Group
		} else if h.rng.IntN(8) == 0 {
			hits[i].Group = ^i
		}
		if first := slices.Index(of, c); h.twoSteps && first < i {
			hits[i].Mode = hits[first].Mode
			if (hits[i].N < 0) != (hits[first].N < 0) {
				hits[i].N = -hits[i].N
			}
		}
		if hits[i].N > 0 || hits[i].Mode == limiter.Quota {
			hits[i].TakenAt, hits[i].OrOldest = 0, false
		}
	}
	return hits, of
}

// hit returns a random hit of the counter. Most refunds name a charge, perhaps under an earlier rule of the counter.
func (h *history) hit(c *counter) limiter.Hit {
	n := h.cost(c)
	hit := limiter.Hit{Key: c.key, Policy: c.policy, N: n, Peek: n == 0}
	canTakeBack := c.policy.Core().Is(step.InFlight|step.Prepayable) && !c.policy.Params().RefillsAtOnce
	if len(c.taken) > 0 && n < 0 && canTakeBack && h.rng.IntN(3) > 0 {
		hit.TakenAt, hit.OrOldest = c.taken[h.rng.IntN(len(c.taken))], h.rng.IntN(3) == 0
	}
	return hit
}

func (h *history) mode() limiter.Mode {
	switch r := h.rng.IntN(100); {
	case r < 70:
		return limiter.Enforce
	case r < 85:
		return limiter.Shadow
	default:
		return limiter.Quota
	}
}

func (h *history) cost(c *counter) int64 {
	most := int64(limiter.MaxHits)
	if h.twoSteps && c.policy.Algorithm() == limiter.SmoothBursty {
		most = 1_000_000 // beyond, the deepest debt may cut off a charge
	}
	return min(max(-most, h.anyCost(c)), most)
}

func (h *history) anyCost(c *counter) int64 {
	switch r := h.rng.IntN(100); {
	case r < 35:
		return 1
	case r < 45:
		return 0
	case r < 60:
		return 1 + h.rng.Int64N(6)
	case r < 70:
		return c.last.Remaining
	case r < 75:
		return min(c.last.Remaining+1, limiter.MaxHits)
	case r < 78:
		return c.policy.Capacity()
	case r < 81:
		return min(c.policy.Capacity()+1, limiter.MaxHits)
	case r < 85:
		return 1 + h.rng.Int64N(c.policy.Capacity()+1)
	case r < 86:
		return limiter.MaxHits
	case r < 95:
		return -1 - h.rng.Int64N(6)
	case r < 98:
		return -1 - h.rng.Int64N(c.policy.Capacity()+1)
	default:
		return -limiter.MaxHits
	}
}

// record logs a line for each hit.
func (h *history) record(hits []limiter.Hit, out []limiter.Decision) {
	for i, hit := range hits {
		h.log = append(h.log, fmt.Sprintf("%s: step %d, hit %d, at %d: %s of %s: %s",
			hit.Key, h.steps, i, h.clock.Now(), describe(hits[i:i+1]), h.names[hit.Policy], short(out[i])))
	}
}

// reported is the maximum number of a key's hits in a message.
const reported = 12

func (h *history) report(i int, hits []limiter.Hit, want, got limiter.Decision) {
	h.Helper()
	var of []string
	for _, line := range h.log {
		if strings.HasPrefix(line, hits[i].Key+": ") {
			of = append(of, line)
		}
	}
	of = of[max(0, len(of)-reported):]
	h.Fatalf("seed %d, step %d, hit %d of [%s]:\ngot  %s\nwant %s\n%s\nwhat the key was asked, and what it should have "+
		"answered:\n%s",
		h.seed, h.steps, i, describe(hits), short(got), short(want), cmp.Diff(want, got), strings.Join(of, "\n"))
}

func short(d limiter.Decision) string {
	answer := "denied"
	if d.Allowed {
		answer = "allowed"
	}
	return fmt.Sprintf("%s, remaining %d, retry %s, reset %s, wait %s, taken at %d", answer, d.Remaining, d.RetryAfter,
		d.ResetAfter, d.Wait, d.TakenAt)
}
