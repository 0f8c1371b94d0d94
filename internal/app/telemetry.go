package app

import (
	"context"
	"log/slog"

	"github.com/weir-ratelimit/weir/internal/telemetry"
)

// openTelemetry starts to send traces and metrics by OTLP. At the end it sends the last of them; a collector that is
// away is no failure.
func (a *App) openTelemetry(ctx context.Context) (err error) {
	o := telemetry.Options{
		Traces: a.o.OTelTraces, HTTP: a.o.OTelProtocol == "http", Version: a.o.Build.Version,
		Log: a.o.Log,
	}
	if a.o.OTelMetrics {
		o.Metrics = a.metrics.Producer()
	}
	if a.telemetry, err = telemetry.Start(ctx, o); err != nil {
		return err
	}
	a.add("OpenTelemetry", nil, func() error { //nolint:contextcheck // ctx has ended by then
		ctx, cancel := context.WithTimeout(context.Background(), lastSend)
		defer cancel()
		if err := a.telemetry.Close(ctx); err != nil {
			a.o.Log.LogAttrs(ctx, slog.LevelWarn, "the last traces or metrics are not sent", slog.String("error", err.Error()))
		}
		return nil
	})
	return nil
}
