package app

import (
	"context"
	"net/http"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/metrics"
	"github.com/weir-ratelimit/weir/internal/panics"
)

// Decider decides requests of a process in which this Weir is embedded.
func (a *App) Decider() *decide.Decider { return a.decider }

// Metrics counts the requests of a process in which this Weir is embedded: that calls Requested for each one, and
// Rejected and Panicked where they apply.
func (a *App) Metrics() *metrics.Metrics { return a.metrics }

// runPart runs a part. In a process that survives panics, such as Envoy, a part that panics runs again after a pause.
func runPart(ctx context.Context, p *part) (err error) {
	panics.Restart(ctx.Done(), p.name, func() { err = p.run(ctx) })
	return err
}

// countPanics counts panics of HTTP requests. package net/http logs them, and closes their connections.
func (a *App) countPanics(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		returned := false
		defer func() {
			if !returned {
				a.metrics.Panicked()
			}
		}()
		next.ServeHTTP(w, r)
		returned = true
	})
}
