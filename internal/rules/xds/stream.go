package xds

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weir-ratelimit/weir/internal/sleep"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

const (
	// mostReconnect is the longest wait between two streams, in units of Options.unit.
	mostReconnect = 30
	// connectTimeout bounds the connection, the TLS handshake and the first frames.
	connectTimeout = 10 * time.Second
	// messagesPerUnit is the maximum number of responses that are judged per Options.unit.
	messagesPerUnit = 10
	// maxReceived times Options.MaxSize is the largest response that can be refused. A larger response ends the stream.
	maxReceived = 4
	// After work on a response, a Source waits workShare times as long before the next one. A response that is `smaller`
	// times smaller does not wait, because it may replace too many rules.
	workShare = 4
	smaller   = 16
)

// keepAlive detects a dead server by TCP. A gRPC server would close a connection with frequent HTTP/2 pings.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 10 * time.Second, Count: 5}

// follow keeps a stream open until ctx is done.
func (s *Source) follow(ctx context.Context) {
	f, wait := follower{Source: s}, time.Duration(0)
	for ctx.Err() == nil {
		err := f.stream(ctx)
		if ctx.Err() != nil {
			return
		}
		s.noteOutage(ctx, err)
		if f.answers > 0 {
			wait = 0
		}
		wait = min(max(2*wait, s.o.unit), mostReconnect*s.o.unit)
		// The wait is up to a fifth shorter, so that many processes do not reconnect at once.
		_ = sleep.For(ctx, wait-rand.N(wait/5+1)) //nolint:gosec // no security depends on it; the loop checks ctx
	}
}

// follower follows one stream at a time.
type follower struct {
	*Source

	certs   *tls.Config // config of the last connection
	refused string      // version that was refused last
	times   int         // number of times in succession that this version was refused

	// State of the current stream:
	ads     discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	version string // version that was accepted last
	answers int
}

// stream opens one connection with one stream, and follows the stream to its end.
func (f *follower) stream(ctx context.Context) error {
	f.version, f.answers = "", 0
	creds, err := f.credentials(ctx, &f.certs)
	if err != nil {
		return err
	}
	dialer := &net.Dialer{KeepAliveConfig: keepAlive}
	conn, err := grpc.NewClient("dns:///"+f.o.Server,
		grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", addr)
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(int(maxReceived*f.o.MaxSize)),
			grpc.ForceCodecV2(codec{encoding.GetCodecV2("proto"), f.o.MaxSize})),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: connectTimeout}),
		grpc.WithDisableServiceConfig(), grpc.WithUserAgent("weir"),
	)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // nothing is lost
	ctx = metadata.NewOutgoingContext(ctx, metadata.New(f.o.Headers))
	if f.ads, err = discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx); err != nil {
		return err
	}
	f.noteConnected(ctx)                        // the stream exists only once the connection does
	if err := f.reply("", "", ""); err != nil { // the first request subscribes
		return err
	}
	return f.answerAll(ctx)
}

// answerAll acknowledges or refuses each response, but a repeated refused version only once per Options.unit.
func (f *follower) answerAll(ctx context.Context) error {
	var rested time.Time  // time from which a response as large as the last expensive response may be judged
	expensive := int64(0) // size of the last expensive response
	for {
		answer := &received{}
		if err := f.ads.RecvMsg(answer); err != nil {
			return err
		}
		if answer.size > expensive/smaller {
			if err := sleep.For(ctx, time.Until(rested)); err != nil {
				return err
			}
		}
		began := time.Now()
		f.answers++
		pause := f.o.unit / messagesPerUnit
		why, has := f.take(ctx, answer), f.version
		switch version := answer.GetVersionInfo(); {
		case why == "":
			f.times = 0
		case version != f.refused || f.times == 0:
			f.refused, f.times = version, 1
		default:
			if f.times++; f.times > 2 {
				pause = f.o.unit
			}
			has = version
		}
		if err := f.reply(has, answer.GetNonce(), why); err != nil {
			return err
		}
		if until := time.Now().Add(workShare * time.Since(began)); until.After(rested) {
			rested, expensive = until, answer.size
		}
		if err := sleep.For(ctx, pause); err != nil {
			return err
		}
	}
}

// take uses a response. It returns why the response is refused, or "".
func (f *follower) take(ctx context.Context, answer *received) (why string) {
	switch {
	case answer.GetTypeUrl() != typeURL:
		why = fmt.Sprintf("the response has type %q, not %s", shorten(answer.GetTypeUrl()), typeURL)
	case answer.size > f.o.MaxSize:
		why = fmt.Sprintf("the response has %d bytes, at most %d are allowed; send fewer, or raise --max-rules-size",
			answer.size, f.o.MaxSize)
	case answer.messages > maxMessages:
		why = fmt.Sprintf("the response has more than %d resources, descriptors, limits and parts of metadata, the fixed "+
			"maximum; send fewer", maxMessages)
	}
	if why != "" {
		v := &verdict{findings: []string{Scheme + f.o.Server + ": " + why}, problems: 1, useless: true}
		f.use(ctx, v, answer.GetVersionInfo())
		return why
	}
	v := f.judge(f.accepted, answer.GetResources())
	f.use(ctx, v, answer.GetVersionInfo())
	if v.useless {
		return strings.Join(v.findings[:min(len(v.findings), maxDomainFindings)], "\n")
	}
	f.version = answer.GetVersionInfo()
	return ""
}

// reply acknowledges the response with the nonce or, if why is not empty, refuses it. has is the version that the
// server is to assume for this client: normally the version accepted last. But servers such as go-control-plane's send
// a refused version again at once until the client has that version. For a repeated refused version, has is therefore
// that version; the server then sends nothing before the rules change, and sends changed rules at once.
func (f *follower) reply(has, nonce, why string) error {
	var detail *statuspb.Status
	if why != "" {
		detail = &statuspb.Status{Code: int32(codes.InvalidArgument), Message: why}
	}
	fields := map[string]*structpb.Value{}
	for name, value := range f.o.NodeMetadata {
		fields[name] = structpb.NewStringValue(value)
	}
	node := &corev3.Node{Id: f.o.NodeID}
	if len(fields) > 0 {
		node.Metadata = &structpb.Struct{Fields: fields}
	}
	err := f.ads.Send(&discoveryv3.DiscoveryRequest{
		Node: node, TypeUrl: typeURL, VersionInfo: has, ResponseNonce: nonce, ErrorDetail: detail,
	})
	if errors.Is(err, io.EOF) {
		return nil // Recv has the error
	}
	return err
}

// use activates the accepted domains of a response, and records its errors.
func (s *Source) use(ctx context.Context, v *verdict, version string) {
	snapshot := reload.NewSnapshot(s.files(v.next))
	s.mu.Lock()
	s.status.ReceivedAt = time.Now()
	s.status.RefusedDomains, s.status.Findings, s.status.FindingCount = v.refused, v.findings, v.problems
	if v.next != nil {
		s.accepted = v.next
	}
	if v.useless {
		s.status.Refused++
	} else {
		if snapshot.Hash != s.snapshot.Hash {
			defer reload.Hint(s.changed)
		}
		s.snapshot, s.status.Domains, s.status.Version = snapshot, len(snapshot.Files), shorten(version)
		s.status.Accepted++
		s.hasRules.Do(func() { close(s.first) })
	}
	s.mu.Unlock()
	if v.problems == 0 {
		return
	}
	s.refusedLine.Log(ctx, s.o.Log, slog.LevelError,
		"rules from xDS refused; the last valid rules of these domains stay in force",
		slog.String("server", Scheme+s.o.Server), slog.String("version", shorten(version)),
		slog.Int("domains", v.refused), slog.Int("error_count", v.problems),
		slog.String("errors", strings.Join(v.findings[:min(len(v.findings), maxDomainFindings)], "; ")))
}

func (s *Source) noteOutage(ctx context.Context, err error) {
	why := "the server has ended the stream"
	if err != nil && !errors.Is(err, io.EOF) {
		why = err.Error()
		if st, ok := status.FromError(err); ok {
			why = fmt.Sprintf("%s: %s", st.Code(), st.Message())
		}
	}
	why = shorten(why)
	s.mu.Lock()
	s.outage = why
	s.mu.Unlock()
	s.outageLine.Log(ctx, s.o.Log, slog.LevelWarn, "no connection to the xDS server; the rules stay in force",
		slog.String("server", Scheme+s.o.Server), slog.String("error", why))
}

func (s *Source) noteConnected(ctx context.Context) {
	s.mu.Lock()
	s.outage = ""
	s.status.Connections++
	s.mu.Unlock()
	if _, ok := s.connectedLine.Allow(time.Now()); ok {
		s.o.Log.LogAttrs(ctx, slog.LevelInfo, "connected to the xDS server",
			slog.String("server", Scheme+s.o.Server))
	}
}
