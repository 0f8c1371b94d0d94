package rlqs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/weir-ratelimit/weir/internal/logging"
)

// Bounds of streams.
const (
	// NodeHeader is the gRPC metadata by which an Envoy may say who it is (GrpcService.initial_metadata).
	NodeHeader = "x-weir-node"

	maxStreams = 2000
	maxNode    = 200              // bytes of a node's name
	maxDomain  = 200              // bytes of a domain's name
	firstIn    = 10 * time.Second // for the first message of a stream
	lastIn     = time.Second      // for the last response of a stream, if the client does not read it

	// An Envoy sends a usage of each bucket every 5 s, and one at once for each new bucket: a flood of invented ones
	// must not delay the reports behind them. Beyond so many usages a second, and so many at once, Weir reads the stream
	// more slowly.
	usagesPerSecond, usagesAtOnce = 20_000, 100_000

	oddLines = 10 * time.Second // between two log lines that clients can cause
)

// Register makes the keeper answer StreamRateLimitQuotas on a server that has Codec.
func (k *Keeper) Register(on grpc.ServiceRegistrar) {
	name := strings.TrimPrefix(pb.RateLimitQuotaService_StreamRateLimitQuotas_FullMethodName, "/")
	service, method, _ := strings.Cut(name, "/")
	on.RegisterService(&grpc.ServiceDesc{
		ServiceName: service,
		HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{
			StreamName: method, ServerStreams: true, ClientStreams: true,
			Handler: func(_ any, stream grpc.ServerStream) error { return k.serve(stream) },
		}},
		Metadata: pb.File_envoy_service_rate_limit_quota_v3_rlqs_proto.Path(), // what reflection finds the messages by
	}, k)
}

// serve serves one stream: a reader receives, a writer sends.
func (k *Keeper) serve(stream grpc.ServerStream) error {
	host := hostOf(stream.Context())
	k.mu.Lock()
	ok := k.places.take(host)
	if !ok {
		k.stats.TooMany++
	}
	k.mu.Unlock()
	if !ok {
		return status.Errorf(codes.ResourceExhausted, "your host has as many quota streams as are free of %d: "+
			"run more replicas of the rate limit service", k.places.most)
	}
	to := k.Open(host, "", nodeOf(stream.Context()))
	defer func() {
		to.Close()
		k.mu.Lock()
		defer k.mu.Unlock()
		k.places.leave(host)
	}()
	r := &reader{k: k, stream: stream, to: to, first: make(chan struct{})}
	last := make(chan struct{}) // closed for the last response
	read := k.inStream(stream, "report", r.run)
	written := k.inStream(stream, "response", func() error { return to.write(stream, last) })
	first := time.NewTimer(firstIn)
	defer first.Stop()
	for seen, isStopping := r.first, false; !isStopping; {
		select {
		case err := <-read:
			return err
		case err := <-written:
			return err
		case <-first.C:
			return status.Errorf(codes.DeadlineExceeded, "no message came in %s; begin the stream with a "+
				"RateLimitQuotaUsageReports that has a domain", firstIn)
		case <-seen:
			first.Stop()
			seen = nil
		case <-k.ended:
			isStopping = true
		}
	}
	close(last)
	select {
	case err := <-written:
		return err
	case <-time.After(lastIn):
		return nil
	}
}

// inStream runs f, whose panic ends only this stream. The channel gets the result.
func (k *Keeper) inStream(stream grpc.ServerStream, what string, f func() error) <-chan error {
	result := make(chan error, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				k.o.Panicked()
				k.o.Logger.LogAttrs(stream.Context(), slog.LevelError, "a quota stream panicked", slog.String("at", what),
					slog.String("panic", fmt.Sprint(p)), slog.String("stack", string(debug.Stack())))
				result <- status.Error(codes.Internal, "internal error, see the log of the rate limit service")
			}
		}()
		result <- f()
	}()
	return result
}

// write sends what is pending, until last is closed or the stream ends.
func (s *Stream) write(to grpc.ServerStream, last <-chan struct{}) error {
	for isLast := false; !isLast; {
		select {
		case <-s.full:
		case <-last:
			isLast = true
		case <-to.Context().Done():
			return nil
		}
		if all := s.take(); len(all) > 0 {
			if err := to.SendMsg(responseOf(all)); err != nil {
				return err
			}
		}
	}
	return nil
}

// hostOf returns the host that a stream comes from.
func hostOf(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ""
	}
	if host, _, err := net.SplitHostPort(p.Addr.String()); err == nil {
		return host
	}
	return p.Addr.Network() // clients of a Unix socket have no names
}

// reader receives the messages of one stream.
type reader struct {
	k      *Keeper
	stream grpc.ServerStream
	to     *Stream
	first  chan struct{} // closed with the first message

	domain string
	tokens float64 // usages that may come now
	filled time.Time
}

// run reads until the stream ends.
func (r *reader) run() error {
	r.tokens, r.filled = usagesAtOnce, time.Now()
	var m reports
	for {
		if err := r.stream.RecvMsg(&m); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := r.report(&m); err != nil {
			return status.Error(codes.InvalidArgument, err.Error())
		}
		r.pace(len(m.usages))
	}
}

// report hands a message to the keeper. The error says what is wrong with it, and what to send.
func (r *reader) report(m *reports) error {
	wrong := m.wrong
	switch {
	case wrong != nil:
	case r.domain == "" && m.domain == "":
		wrong = errors.New("domain: must not be empty in the first message; set the domain of Envoy's quota filter")
	case len(m.domain) > maxDomain:
		wrong = fmt.Errorf("domain: must be at most %d bytes, got %d", maxDomain, len(m.domain))
	case r.domain != "" && m.domain != "" && m.domain != r.domain:
		wrong = fmt.Errorf("domain: this stream is of %q, got %q; open another stream for another domain", r.domain, m.domain)
	case r.domain == "":
		r.domain = m.domain
		r.to.Start(r.domain)
		close(r.first)
	}
	var allowed, denied, unusable uint64
	var why error // of the last one
	if wrong == nil {
		m.usages = slices.DeleteFunc(m.usages, func(u Usage) bool {
			allowed, denied = allowed+u.Allowed, denied+u.Denied
			_, err := entriesOf(u.ID)
			if err != nil {
				unusable++
				why = err
			}
			return err != nil
		})
		r.k.o.Reported(allowed, denied)
	}
	r.k.mu.Lock()
	st := &r.k.stats
	st.Reports++
	st.Allowed, st.Denied, st.BadIDs = st.Allowed+allowed, st.Denied+denied, st.BadIDs+unusable
	if wrong != nil {
		st.InvalidEnded++
	}
	r.k.mu.Unlock()
	if why != nil { // values of requests are not logged
		if skipped, ok := r.k.odd.Allow(time.Now()); ok {
			r.k.o.Logger.Warn("a bucket gets no quota, since its entries are not usable", slog.String("domain", r.domain),
				slog.String("why", why.Error()), slog.Uint64("skipped", skipped))
		}
	}
	if wrong == nil {
		r.to.Report(m.usages)
	}
	return wrong
}

// pace waits if usages come faster than an Envoy sends them.
func (r *reader) pace(usages int) {
	now := time.Now()
	r.tokens = min(usagesAtOnce, r.tokens+now.Sub(r.filled).Seconds()*usagesPerSecond) - float64(max(usages, 1))
	if r.filled = now; r.tokens >= 0 {
		return
	}
	timer := time.NewTimer(time.Duration(-r.tokens / usagesPerSecond * float64(time.Second)))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.stream.Context().Done():
	}
}

// nodeOf returns who the Envoy says it is.
func nodeOf(ctx context.Context) string {
	md, _ := metadata.FromIncomingContext(ctx)
	if of := md.Get(NodeHeader); len(of) > 0 {
		return logging.Shorten(of[0], maxNode)
	}
	return ""
}
