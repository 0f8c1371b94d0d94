package app

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/metadata"

	"github.com/weir-ratelimit/weir/internal/test/partnertest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// The traceparent of a request that its caller traces, and of one that it does not.
const (
	traced   = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	untraced = "00-1af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
)

// collect has what is sent by OTLP go to a collector, and at once.
func collect(t *testing.T) *partnertest.Collector {
	t.Helper()
	c := partnertest.StartCollector(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.Endpoint)
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "5")
	return c
}

func awaitSpans(t *testing.T, c *partnertest.Collector, n int) map[string]partnertest.Span {
	t.Helper()
	for deadline := time.Now().Add(patience); len(c.Spans()) < n && time.Now().Before(deadline); {
		<-time.After(5 * time.Millisecond)
	}
	if got := len(c.Spans()); got != n {
		t.Fatalf("%d spans, want %d: %+v", got, n, c.Spans())
	}
	byName := map[string]partnertest.Span{}
	for _, s := range c.Spans() {
		byName[s.Name] = s
	}
	return byName
}

// A request that its caller traces has a span, without values of clients. Zipkin's headers say of which trace a request
// is, in both of their forms; where W3C's says so too, it counts.
func TestTraces(t *testing.T) {
	const trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	for name, headers := range map[string][]string{
		"W3C":             {"traceparent", traced},
		"one header":      {"b3", trace + "-" + parent + "-1"},
		"several headers": {"x-b3-traceid", trace, "x-b3-spanid", parent, "x-b3-sampled", "1"},
		"W3C's besides":   {"b3", strings.Repeat("1", 32) + "-" + parent + "-1", "traceparent", traced},
	} {
		t.Run(name, func(t *testing.T) {
			c := collect(t)
			o := options(t, rulesOf("1"))
			o.OTel.Traces = true
			p := start(t, o)
			p.ask("secret") // nobody asks for a trace
			for _, h := range [][]string{{"traceparent", untraced}, headers} {
				p.askIn(metadata.AppendToOutgoingContext(context.Background(), h...), "secret")
			}
			p.wait()
			s := awaitSpans(t, c, 1)["envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"]
			if s.Service != "weir" || s.Kind != "SPAN_KIND_SERVER" || s.Trace != trace || s.Parent != parent {
				t.Errorf("%+v is no part of %s", s, traced)
			}
			if s.Strings["weir.domain"] != "shop" || !s.Bools["weir.denied"] || s.Bools["weir.store_failed"] ||
				strings.Contains(fmt.Sprint(s.Strings), "secret") {
				t.Errorf("%+v", s)
			}
			want := map[string][]string{"weir.rules": {"client"}, "weir.outcomes": {"denied"}}
			if diff := cmp.Diff(want, s.Lists); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// The time that a request waits for Redis is a span of its own, which fails with Redis.
func TestStoreSpans(t *testing.T) {
	server := redistest.Start(t)
	c := collect(t)
	o := options(t, rulesOf("10"))
	o.OTel.Traces, o.Store, o.StoreKeyPrefix = true, server.URL(), "weir:"
	p := start(t, o)
	ask := func() {
		p.askIn(metadata.AppendToOutgoingContext(context.Background(), "traceparent", traced), "ann")
	}
	ask()
	spans := awaitSpans(t, c, 2)
	take, request := spans["take"], spans["envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"]
	if take.Parent != request.ID || take.Trace != request.Trace || take.Failed || take.Kind != "SPAN_KIND_CLIENT" {
		t.Errorf("%+v is no part of %+v", take, request)
	}
	server.Kill()
	ask()
	spans = awaitSpans(t, c, 4)
	if take, request = spans["take"], spans["envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"]; !take.Failed ||
		!request.Bools["weir.store_failed"] {
		t.Errorf("without Redis: %+v, %+v", take, request)
	}
}

// Without a collector requests are answered, the log says so, and the process stops.
func TestNoCollector(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
	t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "50")
	t.Setenv("OTEL_TRACES_SAMPLER", "always_on")
	o := options(t, rulesOf("1000"))
	o.OTel.Traces = true
	p := start(t, o)
	for range 100 {
		p.ask("ann")
	}
	p.wait()
	if !strings.Contains(p.log.String(), "are not sent") && !strings.Contains(p.log.String(), "cannot be sent") {
		t.Errorf("the log does not tell:\n%s", p.log)
	}
}
