// Package telemetry sends traces and metrics by OTLP, OpenTelemetry's protocol, over gRPC or HTTP. Besides the bridge
// in internal/metrics, only this package knows OpenTelemetry.
//
// OpenTelemetry's environment variables (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_SAMPLER, ...) say where to send, with
// which headers, certificates and resource attributes, how often, and which requests to trace. Their defaults are
// OpenTelemetry's, except for the sampler: by default, Weir traces a request if its caller does. A collector that does
// not answer does not slow down requests: spans wait in a queue of fixed size, and a full queue drops them.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/weir-ratelimit/weir/internal/logging"
)

// Options say what to send. The zero value sends nothing.
type Options struct {
	// Traces sends a span for each traced request, and one for each of its calls to the store.
	Traces bool
	// Metrics are sent unless nil.
	Metrics sdkmetric.Producer
	// HTTP sends by protobuf over HTTP in place of gRPC.
	HTTP bool
	// Version is the process's.
	Version string
	// Log receives errors, at most one line a minute.
	Log *slog.Logger
}

// Telemetry sends what its Options say. Its methods are safe for concurrent use.
type Telemetry struct {
	traces  *sdktrace.TracerProvider // nil: none
	metrics *sdkmetric.MeterProvider // nil: none
}

// Start checks the environment. It does not connect. Its error names the variable that is wrong.
func Start(ctx context.Context, o Options) (*Telemetry, error) {
	t := &Telemetry{}
	if !o.Traces && o.Metrics == nil {
		return t, nil
	}
	if err := checkEnvironment(o.HTTP); err != nil {
		return nil, err
	}
	otel.SetErrorHandler(&errorLog{log: o.Log, line: logging.Every{Interval: time.Minute}})
	about, err := resource.New(ctx, resource.WithAttributes(
		attribute.String("service.name", "weir"), attribute.String("service.version", o.Version),
	), resource.WithTelemetrySDK(), resource.WithHost(), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	if o.Traces {
		if err := t.trace(ctx, about, o.HTTP); err != nil {
			return nil, err
		}
	}
	if o.Metrics != nil {
		if err := t.measure(ctx, about, o.Metrics, o.HTTP); err != nil {
			return nil, errors.Join(err, t.Close(ctx))
		}
	}
	return t, nil
}

func (t *Telemetry) trace(ctx context.Context, about *resource.Resource, isHTTP bool) error {
	exporter, err := newTraceExporter(ctx, isHTTP)
	if err != nil {
		return fmt.Errorf("send traces by OTLP: %w", err)
	}
	opts := []sdktrace.TracerProviderOption{sdktrace.WithResource(about), sdktrace.WithBatcher(exporter)}
	if value(samplerVariable) == "" {
		opts = append(opts, sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.NeverSample())))
	}
	t.traces = sdktrace.NewTracerProvider(opts...)
	return nil
}

func (t *Telemetry) measure(
	ctx context.Context, about *resource.Resource, from sdkmetric.Producer, isHTTP bool,
) error {
	exporter, err := newMetricExporter(ctx, isHTTP)
	if err != nil {
		return fmt.Errorf("send metrics by OTLP: %w", err)
	}
	t.metrics = sdkmetric.NewMeterProvider(sdkmetric.WithResource(about),
		sdkmetric.WithReader(sdkmetric.NewPeriodicReader(exporter, sdkmetric.WithProducer(from))))
	return nil
}

// newTraceExporter returns the exporter of a protocol, which the environment configures.
func newTraceExporter(ctx context.Context, isHTTP bool) (sdktrace.SpanExporter, error) {
	if isHTTP {
		return otlptracehttp.New(ctx)
	}
	return otlptracegrpc.New(ctx)
}

func newMetricExporter(ctx context.Context, isHTTP bool) (sdkmetric.Exporter, error) {
	if isHTTP {
		return otlpmetrichttp.New(ctx)
	}
	return otlpmetricgrpc.New(ctx)
}

// Close sends what waits in the queues, as long as ctx allows, and ends.
func (t *Telemetry) Close(ctx context.Context) error {
	var errs []error
	if t.traces != nil {
		errs = append(errs, t.traces.Shutdown(ctx))
	}
	if t.metrics != nil {
		errs = append(errs, t.metrics.Shutdown(ctx))
	}
	return errors.Join(errs...)
}

// errorLog logs few of the errors: a collector that is away causes one every few seconds.
type errorLog struct {
	log  *slog.Logger
	line logging.Every
}

// Handle implements otel.ErrorHandler.
func (b *errorLog) Handle(err error) {
	if skipped, ok := b.line.Allow(time.Now()); ok {
		b.log.LogAttrs(context.Background(), slog.LevelWarn,
			"traces or metrics cannot be sent, see OTEL_EXPORTER_OTLP_ENDPOINT",
			slog.String("error", err.Error()), slog.Uint64("not_logged_before", skipped))
	}
}
