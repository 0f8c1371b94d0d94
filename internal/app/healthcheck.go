package app

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// healthcheck is why GET /healthcheck answers 500. Envoy Gateway restarts a process that answers so for half a minute,
// so a Redis that has answered once and is away does not count: all replicas would be restarted in its outage.
func (a *App) healthcheck(ctx context.Context) error {
	if err := a.stoppingErr(ctx); err != nil {
		return err
	}
	if a.o.HealthcheckNeedsRules {
		if set := a.rules.Set(); set == nil || len(set.Domains()) == 0 {
			return errors.New("there are no rules")
		}
	}
	return a.storeWell.check(ctx, a.store.Ping)
}

// openHealthcheck asks the store until it has answered once, whether somebody wants to know or not.
func (a *App) openHealthcheck(context.Context) error {
	a.add("health check", always(func(ctx context.Context) {
		tick := time.NewTicker(wellAgain)
		defer tick.Stop()
		for {
			within, cancel := context.WithTimeout(ctx, wellAgain)
			err := a.storeWell.check(within, a.store.Ping)
			cancel()
			if err == nil {
				return
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}), nil)
	return nil
}

// wellOnce remembers that something was well. Until then it asks, at most once a second and one at a time.
type wellOnce struct {
	well atomic.Bool

	mu    sync.Mutex
	asked time.Time
	err   error
}

// wellAgain is how long an answer is used again.
const wellAgain = time.Second

func (w *wellOnce) check(ctx context.Context, ask func(ctx context.Context) error) error {
	if w.well.Load() {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.asked.IsZero() && time.Since(w.asked) < wellAgain {
		return w.err
	}
	w.err = ask(ctx)
	w.asked = time.Now()
	w.well.Store(w.err == nil)
	return w.err
}
