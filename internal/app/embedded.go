package app

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/metrics"
)

// restartPause is the time between the panic of a part and its next start, in an embedded Weir.
const restartPause = time.Second

// Decider decides requests of a process in which this Weir is embedded.
func (a *App) Decider() *decide.Decider { return a.decider }

// Metrics counts the requests of a process in which this Weir is embedded: that calls Requested for each one, and
// Rejected and Panicked where they apply.
func (a *App) Metrics() *metrics.Metrics { return a.metrics }

// runPart runs a part. In an embedded Weir a panic does not end the process: it is counted and logged, and the part
// runs again after a pause.
func (a *App) runPart(ctx context.Context, p *part) error {
	if !a.o.Embedded {
		return p.run(ctx)
	}
	for {
		panicked, err := a.survive(ctx, p)
		if !panicked {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(restartPause):
		}
	}
}

// survive runs a part once, and reports whether it panicked.
func (a *App) survive(ctx context.Context, p *part) (panicked bool, err error) {
	defer func() {
		if why := recover(); why != nil {
			panicked = true
			a.metrics.Panicked()
			a.o.Log.LogAttrs(ctx, slog.LevelError, "a part panicked and is started again", slog.String("part", p.name),
				slog.String("panic", fmt.Sprint(why)), slog.String("stack", string(debug.Stack())))
		}
	}()
	return false, p.run(ctx)
}
