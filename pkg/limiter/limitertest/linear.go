package limitertest

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/storekit"
)

// Opener opens stores over the same state, empty at first: as many as there are clocks, each of which decides at
// its own clock's time.
type Opener func(t *testing.T, clocks []*Clock) []limiter.Store

// Linearizable records, in that many histories of each algorithm, what concurrent requests of several goroutines for
// each store were answered, and searches an order in which storekit.Decide, one request at a time, answers all of them
// the same, each between the moment it was asked and the moment it was answered. If there is none, the store lost an
// update, showed a request half done, or answered from a state of the past.
//
// Requests are of up to three hits on the same few keys. So the keys of a history hang together and it is searched
// as a whole: parts of it that are linearizable by themselves need not be so together.
//
// A decision depends on the time at which it is made, which the search must know. Virtual time therefore stands still
// while requests are under way, and each store's clock is moved, forth or back, while none is. The clocks of
// the stores differ, as far as windows are long.
func Linearizable(t *testing.T, stores, histories int, open Opener) {
	t.Helper()
	for _, name := range append(step.Names(limiter.Algorithms()), "mixed") {
		t.Run(name, func(t *testing.T) {
			clocks := make([]*Clock, stores)
			for i := range clocks {
				clocks[i] = NewClock()
			}
			r := &recorder{name: name, clocks: clocks, stores: open(t, clocks), policies: policiesOf(t, name)}
			for seed := range uint64(histories) {
				if err := r.check(t, seed); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

const (
	phases      = 6               // of a history; time moves in between
	clients     = 6               // goroutines; the search takes exponentially longer with more
	searchLasts = 2 * time.Minute // far longer than any search took, also with the race detector on a busy machine
)

// asks is how many requests a client makes in a phase. A store in memory answers so soon that goroutines which begin
// together overlap only if they go on for a while.
func (r *recorder) asks() int { return max(4, 16/len(r.stores)) }

// policiesOf are the policies of a history's keys: of the named algorithm, or of several.
func policiesOf(tb testing.TB, name string) (policies []*limiter.Policy) {
	tb.Helper()
	names := []string{name, name, name}
	if name == "mixed" {
		names = []string{"funnel", "sliding_log", "fixed_window"}
	}
	for i, name := range names {
		a, err := limiter.ParseAlgorithm(name)
		if err != nil {
			tb.Fatal(err)
		}
		charge := []limiter.ChargeDenied{limiter.ChargeNone, limiter.ChargeFull, limiter.ChargeRemaining}[i]
		policies = append(policies, policy(tb, limiter.Params{
			Algorithm: a, Limit: int64(7 + 6*i), Window: time.Duration(1+i) * sec, ChargeDenied: charge,
		}))
	}
	return policies
}

// recorder records histories over the stores.
type recorder struct {
	name     string // in keys
	clocks   []*Clock
	stores   []limiter.Store
	policies []*limiter.Policy
}

// request is an operation's input: hits, decided at a time.
type request struct {
	at   int64
	hits []limiter.Hit
}

// errNotLinearizable is what check finds.
var errNotLinearizable = errors.New("no order of the requests explains their answers")

// check records a history on fresh keys and searches its order.
func (r *recorder) check(tb testing.TB, seed uint64) error {
	tb.Helper()
	ops, err := r.record(tb, seed)
	if err != nil {
		return err
	}
	switch result := porcupine.CheckOperationsTimeout(model, ops, searchLasts); result {
	case porcupine.Ok:
		return nil
	case porcupine.Illegal:
		return fmt.Errorf("seed %d: %w:\n%s", seed, errNotLinearizable, shown(ops))
	default:
		return fmt.Errorf("seed %d: %s: the search took more than %s", seed, result, searchLasts)
	}
}

// record has every client ask its store, phase by phase.
func (r *recorder) record(tb testing.TB, seed uint64) ([]porcupine.Operation, error) {
	tb.Helper()
	began, rng := time.Now(), rand.New(rand.NewPCG(seed, 0))
	asks := r.asks()
	var history []porcupine.Operation
	for phase := range int64(phases) {
		for _, c := range r.clocks { // half a second on, or a little back
			c.Set(start + phase*500_000 + rng.Int64N(1_500_000) - 500_000)
		}
		ops, errs := r.inputs(rng, seed), make([]error, clients)
		var wg sync.WaitGroup
		begin := make(chan struct{})
		for client := range clients {
			store, mine := r.stores[client%len(r.stores)], ops[client*asks:][:asks]
			wg.Go(func() {
				<-begin // all at once, and nothing but asking from here on
				for i := range mine {
					in, _ := mine[i].Input.(request)
					out, _ := mine[i].Output.([]limiter.Decision)
					mine[i].Call = time.Since(began).Nanoseconds()
					err := store.Take(tb.Context(), in.hits, out)
					mine[i].Return = time.Since(began).Nanoseconds()
					errs[client] = errors.Join(errs[client], err)
				}
			})
		}
		close(begin)
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			return nil, err
		}
		history = append(history, ops...)
	}
	return history, nil
}

// inputs are what the clients ask in a phase, one client after the other.
func (r *recorder) inputs(rng *rand.Rand, seed uint64) []porcupine.Operation {
	ops := make([]porcupine.Operation, clients*r.asks())
	for i := range ops {
		client := i / r.asks()
		in := request{at: r.clocks[client%len(r.clocks)].Now(), hits: r.hits(rng, seed)}
		ops[i].ClientId, ops[i].Input, ops[i].Output = client, in, make([]limiter.Decision, len(in.hits))
	}
	return ops
}

// hits are one to three hits on different keys, in any order.
func (r *recorder) hits(rng *rand.Rand, seed uint64) []limiter.Hit {
	keys := rng.Perm(len(r.policies))[:1+rng.IntN(len(r.policies))]
	hits := make([]limiter.Hit, len(keys))
	for i, k := range keys {
		hits[i] = limiter.Hit{
			Key: fmt.Sprintf("%s/%d/%d", r.name, seed, k), Policy: r.policies[k],
			N: []int64{1, 1, 1, 2, 3, 0, -1}[rng.IntN(7)],
		}
		hits[i].Look = hits[i].N == 0
		if rng.IntN(8) == 0 {
			hits[i].Mode = limiter.Shadow
		}
	}
	return hits
}

// model says what a request may be answered: what the steps answer, in every field.
var model = porcupine.Model{
	Init: func() any { return reference{} },
	Step: func(state, input, output any) (bool, any) {
		before, ok1 := state.(reference)
		in, ok2 := input.(request)
		want, ok3 := output.([]limiter.Decision)
		if !ok1 || !ok2 || !ok3 {
			return false, state
		}
		after, got := before.fork(), make([]limiter.Decision, len(in.hits))
		after.take(in.at, in.hits, got)
		return slices.Equal(got, want), after
	},
	Equal: func(a, b any) bool {
		x, ok1 := a.(reference)
		y, ok2 := b.(reference)
		return ok1 && ok2 && maps.EqualFunc(x, y, func(s, t storekit.State) bool {
			return s.A == t.A && s.B == t.B && slices.Equal(s.List, t.List)
		})
	},
}

// fork is a copy that steps on without changing what r's states see: a step may append to the list of the state that
// it is given.
func (r reference) fork() reference {
	out := maps.Clone(r)
	for key, s := range out {
		s.List = slices.Clip(s.List)
		out[key] = s
	}
	return out
}

// shown is a history for people, by the time when requests were asked.
func shown(ops []porcupine.Operation) string {
	slices.SortFunc(ops, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
	var b strings.Builder
	for _, op := range ops {
		in, _ := op.Input.(request)
		out, _ := op.Output.([]limiter.Decision)
		fmt.Fprintf(&b, "%9d to %9d ns, client %2d, at %d: %s:", op.Call, op.Return, op.ClientId, in.at, describe(in.hits))
		for _, d := range out {
			fmt.Fprintf(&b, " (%s)", short(d))
		}
		b.WriteByte('\n')
	}
	return b.String()
}
