// Package telemetry sends traces by OTLP over gRPC or HTTP. Only this package depends on OpenTelemetry.
//
// OpenTelemetry's environment variables (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_SAMPLER, ...) set the destination,
// headers, certificates, resource attributes, intervals and sampling. Their defaults are OpenTelemetry's, except for
// the sampler: by default, Weir traces a request if its caller does. An unresponsive collector does not slow down
// requests, because spans wait in a queue of fixed size, and are dropped if it is full.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/go-logr/logr"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/contrib/propagators/b3"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/flags"
	"github.com/weir-ratelimit/weir/internal/logging"
	"github.com/weir-ratelimit/weir/internal/take"
)

// Options are the flags of traces. The zero value sends no traces.
type Options struct {
	// Traces sends a span for each traced request and for each of its calls to the store.
	Traces   bool   `env:"TRACES" help:"Send traces by OTLP to OTEL_EXPORTER_OTLP_ENDPOINT, for requests that OTEL_TRACES_SAMPLER selects; default: those that Envoy traces."`
	Protocol string `env:"PROTOCOL" default:"grpc" help:"Protocol of OTLP: grpc, or http (protobuf over HTTP)."`
	// Version is the version of the process.
	Version string `kong:"-"`
	// Log receives errors, at most one line per minute.
	Log *slog.Logger `kong:"-"`
}

// Check checks the flags.
func (o *Options) Check(e *flags.Errors) {
	p := o.Protocol
	e.Check(!o.Traces || p == "" || p == "grpc" || p == "http", "--otel-protocol", "must be grpc or http, got %q", p)
}

// Telemetry sends traces. Its methods are safe for concurrent use.
type Telemetry struct {
	traces *sdktrace.TracerProvider // nil without Options.Traces
	log    *slog.Logger
}

// Start checks the environment. It does not connect. Its error has the name of the invalid variable.
func Start(ctx context.Context, o Options) (*Telemetry, error) {
	if !o.Traces {
		return &Telemetry{}, nil
	}
	if err := o.CheckEnvironment(os.Getenv); err != nil {
		return nil, err
	}
	otel.SetLogger(logr.Discard())               // it would log invalid values, such as of ..._OTLP_HEADERS
	line := logging.Every{Interval: time.Minute} // an unreachable collector causes an error every few seconds
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		line.Log(ctx, o.Log, slog.LevelWarn, "traces cannot be sent, see OTEL_EXPORTER_OTLP_ENDPOINT",
			slog.String("error", err.Error()))
	}))
	about, err := resource.New(ctx, resource.WithAttributes(
		attribute.String("service.name", "weir"), attribute.String("service.version", o.Version),
	), resource.WithTelemetrySDK(), resource.WithHost(), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	exporter, err := newExporter(ctx, o.Protocol == "http")
	if err != nil {
		return nil, fmt.Errorf("send traces by OTLP: %w", err)
	}
	opts := []sdktrace.TracerProviderOption{sdktrace.WithResource(about), sdktrace.WithBatcher(exporter)}
	if strings.TrimSpace(os.Getenv(samplerVariable)) == "" {
		opts = append(opts, sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.NeverSample())))
	}
	return &Telemetry{traces: sdktrace.NewTracerProvider(opts...), log: o.Log}, nil
}

// newExporter returns an exporter that the environment configures.
func newExporter(ctx context.Context, isHTTP bool) (sdktrace.SpanExporter, error) {
	if isHTTP {
		return otlptracehttp.New(ctx)
	}
	return otlptracegrpc.New(ctx)
}

// lastSend is the maximum time that Close sends.
const lastSend = time.Second

// Close sends the queued spans, and stops. An unreachable collector is not an error.
func (t *Telemetry) Close() error {
	if t.traces == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), lastSend)
	defer cancel()
	if err := t.traces.Shutdown(ctx); err != nil {
		t.log.LogAttrs(ctx, slog.LevelWarn, "the last traces were not sent", slog.String("error", err.Error()))
	}
	return nil
}

const samplerVariable = "OTEL_TRACES_SAMPLER"

// samplers are the values that OpenTelemetry defines for samplerVariable.
var samplers = []string{
	"always_on", "always_off", "traceidratio",
	"parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio",
}

// CheckEnvironment returns an error for values that OpenTelemetry would replace by a default. For example, with a
// misspelt sampler, OpenTelemetry would trace all requests. Without Options.Traces it checks nothing.
func (o *Options) CheckEnvironment(getenv func(name string) string) error {
	if !o.Traces {
		return nil
	}
	var errs []error
	if s := strings.ToLower(strings.TrimSpace(getenv(samplerVariable))); s != "" && !slices.Contains(samplers, s) {
		errs = append(errs, fmt.Errorf("%s: must be one of %s, got %q", samplerVariable, strings.Join(samplers, ", "), s))
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"} {
		endpoint := strings.TrimSpace(getenv(name))
		u, err := url.Parse(endpoint)
		if endpoint != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
			errs = append(errs, fmt.Errorf("%s: must be http://HOST:PORT, or https:// for TLS", name)) // the value may be secret
		}
	}
	return errors.Join(errs...)
}

// ServerOptions make a gRPC server trace its requests, as part of the trace in W3C's traceparent, or else in Zipkin's
// b3 headers. They are empty without Options.Traces.
func (t *Telemetry) ServerOptions() []grpc.ServerOption {
	if t.traces == nil {
		return nil
	}
	return []grpc.ServerOption{grpc.StatsHandler(otelgrpc.NewServerHandler(
		otelgrpc.WithTracerProvider(t.traces),
		otelgrpc.WithMeterProvider(noop.NewMeterProvider()), // weir_request_seconds has the same data
		otelgrpc.WithPropagators(propagation.NewCompositeTextMapPropagator(b3.New(), propagation.TraceContext{})),
		otelgrpc.WithFilter(func(info *stats.RPCTagInfo) bool {
			return info.FullMethodName == pb.RateLimitService_ShouldRateLimit_FullMethodName // not health checks
		}),
	))}
}

// Watchers write decisions to the spans of requests. They are empty without Options.Traces.
func (t *Telemetry) Watchers() []decide.Watcher {
	if t.traces == nil {
		return nil
	}
	return []decide.Watcher{decisions{}}
}

// decisions writes a request's domain, whether it was denied, its rules, and in the same order the outcomes of their
// limits. It does not write keys and values, which may be secrets.
type decisions struct{}

func (decisions) Watch(ctx context.Context, v *decide.Verdict) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	rules, outcomes := make([]string, len(v.Hits)), make([]string, len(v.Hits))
	for i, limit := range v.Limits {
		rules[i], outcomes[i] = limit.Rule.Path, v.Outcome(i).String()
		if limit.Name != "" {
			rules[i] += " (" + limit.Name + ")"
		}
	}
	span.SetAttributes(
		attribute.String("weir.domain", strings.Clone(v.Request.Domain)),
		attribute.Bool("weir.denied", v.Denied),
		attribute.Bool("weir.store_failed", v.Failed()),
		attribute.StringSlice("weir.rules", rules),
		attribute.StringSlice("weir.outcomes", outcomes),
	)
}

// Stages returns a stage that creates a span while a traced request waits for Redis. Other requests may share the call
// to Redis. Without Options.Traces, Stages returns no stage.
func (t *Telemetry) Stages() []take.Stage {
	if t.traces == nil {
		return nil
	}
	return []take.Stage{traced{t.traces.Tracer("github.com/weir-ratelimit/weir")}}
}

type traced struct{ tracer trace.Tracer }

// Before implements take.Stage.
func (t traced) Before(c *take.Call) (answered bool) {
	if trace.SpanContextFromContext(c.Ctx).IsSampled() {
		_, span := t.tracer.Start(c.Ctx, "take", trace.WithSpanKind(trace.SpanKindClient),
			trace.WithAttributes(attribute.String("db.system.name", "redis"), attribute.Int("weir.hits", len(c.Hits))))
		c.Span = span
	}
	return false
}

// After implements take.Stage.
func (traced) After(c *take.Call) {
	if c.Span == nil {
		return
	}
	if c.Err != nil {
		c.Span.SetStatus(codes.Error, c.Err.Error())
	}
	c.Span.End()
}
