package partnertest

import (
	"context"
	"crypto/tls"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// TypeURL is the type of the resources.
const TypeURL = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"

// ControlPlane is an ADS server for rate limit configurations. It responds like go-control-plane's server, but a test
// can make it misbehave.
type ControlPlane struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer

	// Addr is the address, host:port.
	Addr string

	tb   testing.TB
	grpc *grpc.Server
	// requests are the clients' requests.
	requests chan Request

	mu       sync.Mutex
	answer   *discoveryv3.DiscoveryResponse // nil before the first response
	changed  chan struct{}                  // closed when answer has changed
	flooding bool
	nonces   int
	streams  int
}

// Request is a client's request.
type Request struct {
	*discoveryv3.DiscoveryRequest

	Stream  int         // from 1
	Headers metadata.MD // of the stream
	At      time.Time
}

// ControlPlaneOptions are the options of a ControlPlane.
type ControlPlaneOptions struct {
	Addr string      // to listen on; empty for a free port
	TLS  *tls.Config // nil for plain text
}

// StartControlPlane starts a ControlPlane that ends with the test.
func StartControlPlane(tb testing.TB, o ControlPlaneOptions) *ControlPlane {
	tb.Helper()
	if o.Addr == "" {
		o.Addr = "127.0.0.1:0"
	}
	var l net.Listener
	proctest.Await(tb, proctest.Patience, func() (err error) { // the port may have been left just now
		l, err = net.Listen("tcp", o.Addr)
		return err
	})
	var options []grpc.ServerOption
	if o.TLS != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(o.TLS)))
	}
	s := &ControlPlane{
		Addr: l.Addr().String(), tb: tb, grpc: grpc.NewServer(options...), requests: make(chan Request, 10_000),
		changed: make(chan struct{}),
	}
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(s.grpc, s)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.grpc.Serve(l)
	}()
	tb.Cleanup(func() {
		s.Stop()
		<-ended
	})
	return s
}

// Stop ends the server and its streams.
func (s *ControlPlane) Stop() { s.grpc.Stop() }

// Set makes the server send these rules.
func (s *ControlPlane) Set(version string, configs ...*ratelimitv3.RateLimitConfig) {
	s.tb.Helper()
	resources := make([]*anypb.Any, len(configs))
	for i, config := range configs {
		r, err := anypb.New(config)
		if err != nil {
			s.tb.Fatal(err)
		}
		resources[i] = r
	}
	s.Send(&discoveryv3.DiscoveryResponse{VersionInfo: version, TypeUrl: TypeURL, Resources: resources})
}

// Send makes the server send this response, with a new nonce each time.
func (s *ControlPlane) Send(answer *discoveryv3.DiscoveryResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = answer
	close(s.changed)
	s.changed = make(chan struct{})
}

// Flood makes the server send the response repeatedly, independently of the clients' requests.
func (s *ControlPlane) Flood(answer *discoveryv3.DiscoveryResponse) {
	s.mu.Lock()
	s.flooding = true
	s.mu.Unlock()
	s.Send(answer)
}

// Next returns the next request of a client.
func (s *ControlPlane) Next() Request {
	s.tb.Helper()
	select {
	case r := <-s.requests:
		return r
	case <-time.After(proctest.Patience):
		s.tb.Fatal("no request of a client")
		return Request{}
	}
}

// NACKs counts the rejections among the waiting requests, and removes these requests.
func (s *ControlPlane) NACKs() (n int) {
	for {
		select {
		case r := <-s.requests:
			if r.GetErrorDetail() != nil {
				n++
			}
		default:
			return n
		}
	}
}

// StreamAggregatedResources implements the service. Like go-control-plane's server, it responds as soon as the version
// differs from the version in the client's request, so it sends a rejected response again at once.
func (s *ControlPlane) StreamAggregatedResources(
	stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer,
) error {
	s.mu.Lock()
	s.streams++
	number := s.streams
	s.mu.Unlock()
	headers, _ := metadata.FromIncomingContext(stream.Context())
	received := receive(stream.Context(), stream)
	waits, has := false, ""
	for {
		s.mu.Lock()
		answer, changed := s.answer, s.changed
		if answer != nil && (s.flooding || waits && answer.GetVersionInfo() != has) {
			waits = false
			s.nonces++
			nonce := "n" + strconv.Itoa(s.nonces)
			s.mu.Unlock()
			err := stream.Send(&discoveryv3.DiscoveryResponse{
				VersionInfo: answer.GetVersionInfo(), Resources: answer.GetResources(), TypeUrl: answer.GetTypeUrl(), Nonce: nonce,
			})
			if err != nil {
				return err
			}
			continue
		}
		s.mu.Unlock()
		select {
		case r, ok := <-received:
			if !ok {
				return nil
			}
			waits, has = true, r.GetVersionInfo()
			s.requests <- Request{r, number, headers, time.Now()}
		case <-changed:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

func receive(
	ctx context.Context, stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer,
) <-chan *discoveryv3.DiscoveryRequest {
	received := make(chan *discoveryv3.DiscoveryRequest)
	go func() {
		defer close(received)
		for {
			r, err := stream.Recv()
			if err != nil {
				return
			}
			select {
			case received <- r:
			case <-ctx.Done():
				return
			}
		}
	}()
	return received
}

// Domain returns the rules of a domain.
func Domain(name string, descriptors ...*ratelimitv3.RateLimitDescriptor) *ratelimitv3.RateLimitConfig {
	return &ratelimitv3.RateLimitConfig{Name: name, Domain: name, Descriptors: descriptors}
}

// Limit returns a rule of n requests per hour.
func Limit(key, value string, n uint32) *ratelimitv3.RateLimitDescriptor {
	return &ratelimitv3.RateLimitDescriptor{
		Key: key, Value: value,
		RateLimit: &ratelimitv3.RateLimitPolicy{Unit: ratelimitv3.RateLimitUnit_HOUR, RequestsPerUnit: n},
	}
}

// Node returns a rule without a limit, with other rules below it.
func Node(key, value string, below ...*ratelimitv3.RateLimitDescriptor) *ratelimitv3.RateLimitDescriptor {
	return &ratelimitv3.RateLimitDescriptor{Key: key, Value: value, Descriptors: below}
}
