package telemetry

import (
	"context"
	"strings"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/contrib/propagators/b3"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// ServerOptions make a gRPC server trace its requests, as parts of the traces that W3C's traceparent names, or the b3
// headers of Zipkin where that is missing. There are none without Options.Traces.
func (t *Telemetry) ServerOptions() []grpc.ServerOption {
	if t.traces == nil {
		return nil
	}
	return []grpc.ServerOption{grpc.StatsHandler(otelgrpc.NewServerHandler(
		otelgrpc.WithTracerProvider(t.traces),
		otelgrpc.WithMeterProvider(noop.NewMeterProvider()), // weir_request_seconds is the same
		otelgrpc.WithPropagators(propagation.NewCompositeTextMapPropagator(b3.New(), propagation.TraceContext{})),
		otelgrpc.WithFilter(func(info *stats.RPCTagInfo) bool {
			return info.FullMethodName == pb.RateLimitService_ShouldRateLimit_FullMethodName // not health checks
		}),
	))}
}

// Watchers write the decision on the spans of requests. There are none without Options.Traces.
func (t *Telemetry) Watchers() []decide.Watcher {
	if t.traces == nil {
		return nil
	}
	return []decide.Watcher{decisions{}}
}

// decisions writes a request's domain, whether it was denied, its rules and, in the same order, the outcome of each of
// their limits. It does not write keys and values: they may be secrets.
type decisions struct{}

// Watch implements decide.Watcher.
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

// Store returns the store with a span around each call of a traced request. The span is the time that the request
// waited for Redis, in a call that it may have shared with other requests.
func (t *Telemetry) Store(store limiter.Store) limiter.Store {
	if t.traces == nil {
		return store
	}
	return &traced{store, t.traces.Tracer("github.com/weir-ratelimit/weir")}
}

type traced struct {
	limiter.Store
	tracer trace.Tracer
}

// Take implements limiter.Store.
func (t *traced) Take(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	if !trace.SpanContextFromContext(ctx).IsSampled() {
		return t.Store.Take(ctx, hits, out)
	}
	ctx, span := t.tracer.Start(ctx, "take", trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(attribute.String("db.system.name", "redis"), attribute.Int("weir.hits", len(hits))))
	defer span.End()
	err := t.Store.Take(ctx, hits, out)
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	return err
}
