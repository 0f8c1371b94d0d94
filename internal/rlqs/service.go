package rlqs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime/debug"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
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

	// An Envoy sends a usage of each bucket every 5 s, and one at once for each new bucket: a flood of invented ones
	// must not delay the reports behind them. Beyond so many usages a second, and so many at once, Weir reads the stream
	// more slowly.
	usagesPerSecond, usagesAtOnce = 20_000, 100_000
)

// StreamRateLimitQuotas implements Envoy's RateLimitQuotaService, on a server that has Codec.
func (k *Keeper) StreamRateLimitQuotas(stream pb.RateLimitQuotaService_StreamRateLimitQuotasServer) error {
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
	r := &reader{k: k, stream: stream, to: k.Open(host, "", nodeOf(stream.Context())), first: make(chan struct{})}
	defer func() {
		r.to.Close()
		k.mu.Lock()
		defer k.mu.Unlock()
		k.places.leave(host)
	}()
	read, panicked := make(chan error, 1), make(chan any, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				panicked <- fmt.Sprintf("%v\n%s", p, debug.Stack())
			}
		}()
		read <- r.run()
	}()
	first := time.After(firstIn)
	for seen := r.first; ; {
		select {
		case <-r.to.full:
			if err := r.to.write(stream); err != nil {
				return err
			}
		case err := <-read:
			return err
		case p := <-panicked:
			panic(p) //nolint:forbidigo // raised again: the server's interceptor makes it an error of this stream
		case <-seen:
			seen, first = nil, nil
		case <-first:
			return status.Errorf(codes.DeadlineExceeded, "no message came in %s; begin the stream with a "+
				"RateLimitQuotaUsageReports that has a domain", firstIn)
		case <-k.ended:
			return r.to.write(stream)
		}
	}
}

// write sends what is pending.
func (s *Stream) write(to pb.RateLimitQuotaService_StreamRateLimitQuotasServer) error {
	all := s.take()
	if len(all) == 0 {
		return nil
	}
	return to.Send(responseOf(all))
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
	stream pb.RateLimitQuotaService_StreamRateLimitQuotasServer
	to     *Stream
	first  chan struct{} // closed with the first message

	domain string
	tokens float64 // usages that may come now
	filled time.Time
}

// run reads until the stream ends.
func (r *reader) run() error {
	r.tokens, r.filled = usagesAtOnce, time.Now()
	for {
		m, err := r.stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		usages, err := r.check(m)
		r.k.reported(usages, err)
		if err != nil {
			return status.Error(codes.InvalidArgument, err.Error())
		}
		r.to.Report(usages)
		r.pace(len(usages))
	}
}

// check returns the usages of a message. The error says what is wrong with it, and what to send.
func (r *reader) check(m *pb.RateLimitQuotaUsageReports) ([]Usage, error) {
	usages, err := usagesOf(m)
	switch domain := m.GetDomain(); {
	case err != nil:
		return nil, err
	case r.domain == "" && domain == "":
		return nil, errors.New("domain: must not be empty in the first message; set the domain of Envoy's quota filter")
	case len(domain) > maxDomain:
		return nil, fmt.Errorf("domain: must be at most %d bytes, got %d", maxDomain, len(domain))
	case r.domain == "":
		r.domain = domain
		r.to.Start(domain)
		close(r.first)
	case domain != "" && domain != r.domain:
		return nil, fmt.Errorf("domain: this stream is of %q, got %q; open another stream for that domain", r.domain, domain)
	}
	return usages, nil
}

// reported counts a message.
func (k *Keeper) reported(usages []Usage, wrong error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	st := &k.stats
	if st.Reports++; wrong != nil {
		st.InvalidEnded++
	}
	for i := range usages {
		st.Allowed, st.Denied = st.Allowed+usages[i].Allowed, st.Denied+usages[i].Denied
	}
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
