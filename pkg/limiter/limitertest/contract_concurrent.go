package limitertest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

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

// concurrentSeveral charges three of five keys per request, in every order, and checks that each key lacks what it
// admitted.
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

// parallel makes each worker decide rounds requests.
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
