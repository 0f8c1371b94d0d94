package partnertest

import (
	"context"
	"encoding/hex"
	"net"
	"slices"
	"sync"
	"testing"

	tracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
)

// Span is a received span.
type Span struct {
	Service, Name     string
	Trace, ID, Parent string // hexadecimal
	Strings           map[string]string
	Bools             map[string]bool
	Lists             map[string][]string
	Kind              string // "SPAN_KIND_SERVER", ...
	Failed            bool
}

// Collector is a running collector of traces.
type Collector struct {
	// Endpoint is the URL for OTEL_EXPORTER_OTLP_ENDPOINT, Addr its host:port.
	Endpoint, Addr string

	mu    sync.Mutex
	spans []Span
}

// StartCollector listens until the test ends.
func StartCollector(tb testing.TB) *Collector {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	addr := listener.Addr().String()
	c := &Collector{Endpoint: "http://" + addr, Addr: addr}
	server := grpc.NewServer()
	tracepb.RegisterTraceServiceServer(server, traces{c: c})
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	tb.Cleanup(func() {
		server.Stop()
		if err := <-ended; err != nil {
			tb.Error(err)
		}
	})
	return c
}

// Spans returns the spans received so far.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.spans)
}

type traces struct {
	tracepb.UnimplementedTraceServiceServer
	c *Collector
}

// Export implements OTLP.
func (t traces) Export(
	_ context.Context, req *tracepb.ExportTraceServiceRequest,
) (*tracepb.ExportTraceServiceResponse, error) {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	for _, of := range req.GetResourceSpans() {
		service := ""
		for _, a := range of.GetResource().GetAttributes() {
			if a.GetKey() == "service.name" {
				service = a.GetValue().GetStringValue()
			}
		}
		for _, scope := range of.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				span := Span{
					Service: service, Name: s.GetName(), Kind: s.GetKind().String(),
					Failed: s.GetStatus().GetCode() == tracev1.Status_STATUS_CODE_ERROR,
					Trace:  hex.EncodeToString(s.GetTraceId()),
					ID:     hex.EncodeToString(s.GetSpanId()),
					Parent: hex.EncodeToString(s.GetParentSpanId()),
				}
				span.read(s.GetAttributes())
				t.c.spans = append(t.c.spans, span)
			}
		}
	}
	return &tracepb.ExportTraceServiceResponse{}, nil
}

func (s *Span) read(attributes []*commonpb.KeyValue) {
	s.Strings, s.Bools, s.Lists = map[string]string{}, map[string]bool{}, map[string][]string{}
	for _, a := range attributes {
		switch v := a.GetValue().GetValue().(type) {
		case *commonpb.AnyValue_StringValue:
			s.Strings[a.GetKey()] = v.StringValue
		case *commonpb.AnyValue_BoolValue:
			s.Bools[a.GetKey()] = v.BoolValue
		case *commonpb.AnyValue_ArrayValue:
			for _, e := range v.ArrayValue.GetValues() {
				s.Lists[a.GetKey()] = append(s.Lists[a.GetKey()], e.GetStringValue())
			}
		}
	}
}
