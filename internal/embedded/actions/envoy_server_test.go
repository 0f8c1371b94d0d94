//go:build e2e

package actions_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/weir-ratelimit/weir/internal/embedded/actions"
)

// client sends requests as they are, over one connection.
type client struct {
	t    *testing.T
	conn net.Conn
	r    *bufio.Reader
}

func dial(t *testing.T, addr string) *client {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &client{t, conn, bufio.NewReader(conn)}
}

func (c *client) send(req *drawnRequest) {
	c.t.Helper()
	var b bytes.Buffer
	fmt.Fprintf(&b, "GET %s HTTP/1.1\r\nHost: shop.example\r\n", req.path)
	for _, h := range req.headers {
		fmt.Fprintf(&b, "%s: %s\r\n", h[0], h[1])
	}
	b.WriteString("\r\n")
	if err := c.conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.conn.Write(b.Bytes()); err != nil {
		c.t.Fatal(err)
	}
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		c.t.Fatalf("%q: %v", b.String(), err)
	}
	defer resp.Body.Close() //nolint:errcheck // only read from
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		c.t.Fatalf("%q: %s %s, %v", b.String(), resp.Status, body, err)
	}
}

// recorder is a rate limit service that lets everything pass and keeps what it is asked.
type recorder struct {
	pb.UnimplementedRateLimitServiceServer

	addr  string
	asked chan *pb.RateLimitRequest
}

func newRecorder(t *testing.T) *recorder {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{addr: l.Addr().String(), asked: make(chan *pb.RateLimitRequest, 100)}
	s := grpc.NewServer(grpc.ForceServerCodecV2(repairing{}))
	pb.RegisterRateLimitServiceServer(s, r)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *recorder) ShouldRateLimit(_ context.Context, req *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	r.asked <- req
	return &pb.RateLimitResponse{OverallCode: pb.RateLimitResponse_OK}, nil
}

// next returns the next call, and nil if there is none for so long.
func (r *recorder) next(within time.Duration) *pb.RateLimitRequest {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case req := <-r.asked:
		return req
	default:
	}
	select {
	case req := <-r.asked:
		return req
	case <-timer.C:
		return nil
	}
}

// repairing is a codec for messages with text that is not UTF-8: protobuf reads no such message. It replaces each run
// of such bytes as internal/rls does.
type repairing struct{}

func (repairing) Name() string { return "proto" }

func (repairing) Marshal(v any) (mem.BufferSlice, error) {
	data, err := proto.Marshal(v.(proto.Message)) //nolint:errcheck // gRPC passes messages
	return mem.BufferSlice{mem.SliceBuffer(data)}, err
}

func (repairing) Unmarshal(data mem.BufferSlice, v any) error {
	return proto.Unmarshal(repair(data.Materialize(), 2, 1), v.(proto.Message)) //nolint:errcheck // gRPC passes messages
}

// repair repairs the text in a message, and in the messages in these fields.
func repair(message []byte, below ...protowire.Number) []byte {
	var repaired []byte
	for len(message) > 0 {
		number, kind, size := protowire.ConsumeField(message)
		if size < 0 {
			return append(repaired, message...)
		}
		if kind == protowire.BytesType && (len(below) == 0 || number == below[0]) {
			_, _, tag := protowire.ConsumeTag(message)
			value, _ := protowire.ConsumeBytes(message[tag:])
			if len(below) > 0 {
				value = repair(value, below[1:]...)
			} else {
				value = bytes.ToValidUTF8(value, []byte("?"))
			}
			repaired = protowire.AppendBytes(protowire.AppendTag(repaired, number, kind), value)
		} else {
			repaired = append(repaired, message[:size]...)
		}
		message = message[size:]
	}
	return repaired
}

// showWire is show of what Envoy sent.
func showWire(req *pb.RateLimitRequest) []string {
	var ds []actions.Descriptor
	for _, w := range req.GetDescriptors() {
		var d actions.Descriptor
		for _, e := range w.GetEntries() {
			d.Entries = append(d.Entries, entry(e.GetKey(), e.GetValue()))
		}
		if w.GetHitsAddend() != nil {
			d.HasHitsAddend = true
			if d.HitsAddend = int64(w.GetHitsAddend().GetValue()); w.GetIsNegativeHits() {
				d.HitsAddend = -d.HitsAddend
			}
		}
		if l := w.GetLimit(); l != nil {
			d.Limit.Requests = l.GetRequestsPerUnit()
			d.Limit.Window = windows[slices.Index(unitNames, l.GetUnit().String())]
		}
		ds = append(ds, d)
	}
	return show(ds)
}

var (
	unitNames = []string{"SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR"}
	windows   = []time.Duration{
		time.Second, time.Minute, time.Hour, 24 * time.Hour, 30 * 24 * time.Hour, 365 * 24 * time.Hour,
	}
)
