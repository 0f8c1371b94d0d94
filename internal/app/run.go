package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/metrics"
	"github.com/weir-ratelimit/weir/internal/panics"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

// Run serves until ctx is done, then stops: it fails /readyz, continues to serve for the drain delay, and ends after
// the requests in flight or the stop timeout. It returns an error if a part fails or does not end in time. Call it at
// most once, before Close.
func (a *App) Run(ctx context.Context) error {
	work, stopWork := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWork()
	var background sync.WaitGroup
	var running sync.Map // names of parts
	failed := make(chan error, len(a.parts))
	for _, p := range a.parts {
		if p.run == nil {
			continue
		}
		running.Store(p.name, nil)
		background.Go(func() {
			defer running.Delete(p.name)
			panics.Catch(p.name, func() {
				if err := runPart(work, &p); err != nil {
					failed <- fmt.Errorf("%s: %w", p.name, err)
				}
			})
		})
	}
	a.logStart(work)

	var err error
	select {
	case <-ctx.Done():
		err = a.stop(work)
	case err = <-failed:
		err = errors.Join(err, a.cut())
	}
	stopHTTP, cancel := context.WithTimeout(work, httpStop)
	defer cancel()
	err = errors.Join(err, a.admin.Stop(stopHTTP)) // the HTTP servers stop last, to respond to probes until the end
	stopWork()
	wait := lastWait + a.o.LongestTimeout()
	if Within(wait, background.Wait) {
		return err
	}
	var late []string
	for name := range running.Range {
		late = append(late, fmt.Sprint(name))
	}
	slices.Sort(late)
	return errors.Join(err, fmt.Errorf("parts still running %s after the stop: %s", wait, strings.Join(late, ", ")))
}

// stop ends the service after the requests in flight. It returns an error if requests did not end even when cancelled.
func (a *App) stop(ctx context.Context) (err error) {
	start := time.Now()
	a.admin.Stopping()
	if a.grpc == nil { // the other process has stopped calling
		a.o.Log.LogAttrs(ctx, slog.LevelInfo, "stopped")
		return nil
	}
	a.grpc.Health.Shutdown()
	a.o.Log.LogAttrs(ctx, slog.LevelInfo, "stopping",
		slog.Duration("drain_delay", a.o.DrainDelay), slog.Duration("stop_timeout", a.o.StopTimeout))
	<-time.After(a.o.DrainDelay)
	a.grpc.Health.End()
	if a.quotas != nil { // charges requests that Envoys may still admit, and ends the streams
		last, cancel := context.WithTimeout(ctx, a.o.MaxWait()+lastSend)
		a.quotas.Stop(last)
		cancel()
	}
	answered := Within(a.o.StopTimeout, a.grpc.Stop)
	if !answered {
		err = a.cut()
	}
	a.o.Log.LogAttrs(ctx, slog.LevelInfo, "stopped",
		slog.Bool("all_answered", answered), slog.Duration("took", time.Since(start)))
	return err
}

// cut cancels all requests. It returns an error if requests did not end.
func (a *App) cut() error {
	if a.grpc != nil && !Within(lastCut, a.grpc.Cut) {
		return fmt.Errorf("requests still run %s after their connections were closed", lastCut)
	}
	return nil
}

// logStart logs the address, store and rules of the process.
func (a *App) logStart(ctx context.Context) {
	status := a.rules.Status()
	limits := 0
	if set := a.rules.Set(); set != nil {
		limits = len(set.Limits())
	}
	grpc := slog.String("grpc", a.GRPCAddr())
	if a.grpc == nil {
		grpc = slog.Attr{}
	}
	parts := []slog.Attr{
		slog.String("version", a.o.Build.Version),
		grpc,
		slog.String("http", a.HTTPAddr()),
		slog.String("store", a.store.String()),
		slog.String("rules", reload.ShortHash(status.Hash)),
		slog.Int("files", len(status.Files)),
		slog.Int("limits", limits),
	}
	if a.quotas != nil {
		parts = append(parts, slog.Bool("quota", true))
	}
	a.o.Log.LogAttrs(ctx, slog.LevelInfo, "serving", parts...)
}

// Within runs f and reports whether f ended in time. A late f continues in its own goroutine.
func Within(limit time.Duration, f func()) bool {
	done := make(chan struct{})
	panics.Go("end of a part", func() {
		defer close(done)
		f()
	})
	select {
	case <-done:
		return true
	case <-time.After(limit):
		return false
	}
}

// closeInTime closes a part. It returns an error, and abandons the part, if closing takes longer than limit.
func closeInTime(name string, limit time.Duration, closePart func() error) error {
	closed := make(chan error, 1)
	if !Within(limit, func() {
		err := errors.New("closing panicked") // replaced if closePart returns
		defer func() { closed <- err }()
		err = closePart()
	}) {
		return fmt.Errorf("%s: still not closed after %s", name, limit)
	}
	return <-closed
}

// Decider returns the Decider, for the process in which this Weir is embedded.
func (a *App) Decider() *decide.Decider { return a.decider }

// Metrics returns the metrics. The process in which this Weir is embedded must call Requested for each request, and
// Rejected and Panicked where they apply.
func (a *App) Metrics() *metrics.Metrics { return a.metrics }

// runPart runs a part. In a process that survives panics, such as Envoy, it restarts a part that panics after a pause.
func runPart(ctx context.Context, p *part) (err error) {
	panics.Restart(ctx.Done(), p.name, func() { err = p.run(ctx) })
	return err
}
