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

// Opener returns one store per clock, all over the same, empty state. Each store decides at the time of its clock.
type Opener func(t *testing.T, clocks []*Clock) []limiter.Store

// Linearizable records concurrent requests to several stores over the same state, in that many histories of each
// algorithm. For each history it searches an order of the requests in which storekit.Decide makes the same decisions,
// one request at a time, each between the call and the return of its request. If there is no such order, the store lost
// an update, showed a request half done, or read an old state.
//
// Requests have up to three hits on the same few keys. So the whole history must be searched at once: parts that are
// linearizable separately need not be linearizable together.
//
// A decision depends on its time, which the search must know. So virtual time stands still during requests, and each
// store's clock moves, forth or back, only between them. The clocks differ by up to the length of a window.
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
	phases      = 6               // number of phases in a history; time moves between them
	clients     = 6               // number of goroutines; the search time grows exponentially with it
	searchLasts = 2 * time.Minute // far longer than any search so far, even with the race detector on a busy machine
)

// asks returns the number of requests per client and phase. A store in memory decides so fast that the requests of two
// goroutines overlap only if each makes several.
func (r *recorder) asks() int { return max(4, 16/len(r.stores)) }

// policiesOf returns the policies of a history's keys: of the named algorithm, or of several if the name is mixed.
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
	name     string // part of each key
	clocks   []*Clock
	stores   []limiter.Store
	policies []*limiter.Policy
}

// request is the input of an operation: hits, decided at one time.
type request struct {
	at   int64
	hits []limiter.Hit
}

// errNotLinearizable is the error of check.
var errNotLinearizable = errors.New("no order of the requests explains their answers")

// check records a history on new keys, and searches its order.
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

// record makes every client call its store, phase by phase.
func (r *recorder) record(tb testing.TB, seed uint64) ([]porcupine.Operation, error) {
	tb.Helper()
	began, rng := time.Now(), rand.New(rand.NewPCG(seed, 0))
	asks := r.asks()
	var history []porcupine.Operation
	for phase := range int64(phases) {
		for _, c := range r.clocks { // about half a second forward, or a little back
			c.Set(start + phase*500_000 + rng.Int64N(1_500_000) - 500_000)
		}
		ops, errs := r.inputs(rng, seed), make([]error, clients)
		var wg sync.WaitGroup
		begin := make(chan struct{})
		for client := range clients {
			store, mine := r.stores[client%len(r.stores)], ops[client*asks:][:asks]
			wg.Go(func() {
				<-begin // start all at once, and only call the store from here on
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

// inputs returns the requests of a phase, client by client.
func (r *recorder) inputs(rng *rand.Rand, seed uint64) []porcupine.Operation {
	ops := make([]porcupine.Operation, clients*r.asks())
	for i := range ops {
		client := i / r.asks()
		in := request{at: r.clocks[client%len(r.clocks)].Now(), hits: r.hits(rng, seed)}
		ops[i].ClientId, ops[i].Input, ops[i].Output = client, in, make([]limiter.Decision, len(in.hits))
	}
	return ops
}

// hits returns one to three hits on different keys, in random order.
func (r *recorder) hits(rng *rand.Rand, seed uint64) []limiter.Hit {
	keys := rng.Perm(len(r.policies))[:1+rng.IntN(len(r.policies))]
	hits := make([]limiter.Hit, len(keys))
	for i, k := range keys {
		hits[i] = limiter.Hit{
			Key: fmt.Sprintf("%s/%d/%d", r.name, seed, k), Policy: r.policies[k],
			N: []int64{1, 1, 1, 2, 3, 0, -1}[rng.IntN(7)],
		}
		hits[i].Peek = hits[i].N == 0
		if rng.IntN(8) == 0 {
			hits[i].Mode = limiter.Shadow
		}
	}
	return hits
}

// model accepts the decisions of storekit.Decide, in every field.
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

// fork returns a copy whose steps do not change the states of r, since a step may append to the list of its state.
func (r reference) fork() reference {
	out := maps.Clone(r)
	for key, s := range out {
		s.List = slices.Clip(s.List)
		out[key] = s
	}
	return out
}

// shown returns a history as text, in the order of the calls.
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
