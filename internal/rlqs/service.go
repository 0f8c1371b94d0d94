package rlqs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/weir-ratelimit/weir/internal/sleep"
	"github.com/weir-ratelimit/weir/internal/words"
)

// Bounds of streams.
const (
	maxDomain = 200 // bytes of a domain's name

	// An Envoy reports each bucket's usage every 5 s, and a new bucket's at once. To keep a client's invented buckets from
	// delaying other reports, Weir reads usagesPerSecond usages of a stream on average, pausing after usagesAtOnce.
	usagesPerSecond, usagesAtOnce = 20_000, 10_000
)

// envoy is an Envoy's stream.
type envoy = pb.RateLimitQuotaService_StreamRateLimitQuotasServer

// StreamRateLimitQuotas implements Envoy's RateLimitQuotaService. The server must use Codec and bound the time until a
// stream's first message.
func (k *Keeper) StreamRateLimitQuotas(stream envoy) error {
	select {
	case <-k.ended:
		return nil
	default:
	}
	m, err := stream.Recv()
	if err != nil {
		return notEOF(err)
	}
	switch domain := m.GetDomain(); {
	case domain == "":
		return k.invalid("domain: must not be empty in the first message; set the domain of Envoy's quota filter")
	case len(domain) > maxDomain:
		return k.invalid("domain: must be at most %d bytes, got %d", maxDomain, len(domain))
	}
	s := k.Open(hostOf(stream.Context()), m.GetDomain())
	defer s.Close()
	read := make(chan func() error, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				text := fmt.Sprintf("%v\n%s", p, debug.Stack())
				read <- func() error { panic(text) } //nolint:forbidigo // the server's interceptor makes it an error
			}
		}()
		err := s.read(stream, m)
		read <- func() error { return err }
	}()
	for {
		select {
		case <-s.full:
			if err := s.write(stream); err != nil {
				return err
			}
		case result := <-read:
			return result()
		case <-k.ended:
			return s.write(stream)
		}
	}
}

// notEOF returns the error of a Recv, or nil if the client has ended the stream.
func notEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// invalid counts an invalid message, and returns the error that ends its stream.
func (k *Keeper) invalid(format string, args ...any) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stats.InvalidEnded++
	return status.Errorf(codes.InvalidArgument, format, args...)
}

// write sends pending assignments.
func (s *Stream) write(to envoy) error {
	all := s.take()
	if len(all) == 0 {
		return nil
	}
	return to.Send(responseOf(all))
}

// hostOf returns the host of a stream's client.
func hostOf(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ""
	}
	return words.Client(p.Addr)
}

// read reads the stream's reports, beginning with m.
func (s *Stream) read(from envoy, m *pb.RateLimitQuotaUsageReports) error {
	for unpaced := 0; ; {
		usages, err := usagesOf(m)
		if err != nil {
			return s.keeper.invalid("%s", err)
		}
		if domain := m.GetDomain(); domain != "" && domain != s.domain {
			return s.keeper.invalid("domain: this stream is for %q, got %q; open another stream for each domain", s.domain,
				domain)
		}
		s.Report(usages)
		if unpaced += len(usages) + 1; unpaced >= usagesAtOnce {
			_ = sleep.For(from.Context(), time.Duration(unpaced)*time.Second/usagesPerSecond) // Recv returns its error, too
			unpaced = 0
		}
		if m, err = from.Recv(); err != nil {
			return notEOF(err)
		}
	}
}
