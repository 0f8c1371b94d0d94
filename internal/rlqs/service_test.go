package rlqs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	gproto "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// patience is how long anything may take on a busy machine.
const patience = proctest.Patience

// unlimited resolves each bucket to no limit.
func unlimited(string, BucketID) Target { return Target{} }

// served is a Service behind a gRPC connection.
type served struct {
	*Keeper

	client pb.RateLimitQuotaServiceClient
	log    *proctest.Buffer
}

func serve(t *testing.T, resolve func(string, BucketID) Target) *served {
	t.Helper()
	s := &served{log: &proctest.Buffer{}}
	s.Keeper = newKeeper(t, Options{
		Store: noStore{}, Resolve: resolve, Logger: slog.New(slog.NewTextHandler(s.log, nil)), Decided: func(Decided) {},
	})
	listener := bufconn.Listen(1 << 20)
	server := grpc.NewServer(grpc.ForceServerCodecV2(Codec(encoding.GetCodecV2(proto.Name))), grpc.WaitForHandlers(true),
		grpc.StreamInterceptor(func(
			srv any, to grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler,
		) (err error) {
			defer func() {
				if p := recover(); p != nil {
					err = status.Error(codes.Internal, fmt.Sprint(p))
				}
			}()
			return next(srv, to)
		}))
	pb.RegisterRateLimitQuotaServiceServer(server, s.Keeper)
	go func() { _ = server.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///weir",
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{encoding.GetCodecV2(proto.Name)})),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return listener.Dial() }))
	if err != nil {
		t.Fatal(err)
	}
	s.client = pb.NewRateLimitQuotaServiceClient(conn)
	end := run(s.Keeper)
	t.Cleanup(func() {
		_ = conn.Close()
		server.Stop()
		end()
		if n := s.Stats().Streams; n != 0 {
			t.Errorf("%d streams are left in the keeper", n)
		}
	})
	return s
}

type stream = grpc.BidiStreamingClient[pb.RateLimitQuotaUsageReports, pb.RateLimitQuotaResponse]

func (s *served) open(t *testing.T) stream {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	st, err := s.client.StreamRateLimitQuotas(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// usage is a report of a bucket, key by value.
func usage(allowed, denied uint64, entries ...string) *pb.RateLimitQuotaUsageReports_BucketQuotaUsage {
	id := &pb.BucketId{Bucket: map[string]string{}}
	for i := 0; i < len(entries); i += 2 {
		id.Bucket[entries[i]] = entries[i+1]
	}
	return &pb.RateLimitQuotaUsageReports_BucketQuotaUsage{
		BucketId: id, NumRequestsAllowed: allowed, NumRequestsDenied: denied, TimeElapsed: durationpb.New(5 * time.Second),
	}
}

func report(domain string, usages ...*pb.RateLimitQuotaUsageReports_BucketQuotaUsage) *pb.RateLimitQuotaUsageReports {
	return &pb.RateLimitQuotaUsageReports{Domain: domain, BucketQuotaUsages: usages}
}

func send(t *testing.T, to stream, m *pb.RateLimitQuotaUsageReports) {
	t.Helper()
	if err := to.Send(m); err != nil {
		t.Fatal(err)
	}
}

func TestAssignmentReachesTheStream(t *testing.T) {
	s := serve(t, unlimited)
	st := s.open(t)
	send(t, st, report("shop", usage(3, 1, "b", "2", "a", "1")))
	res, err := st.Recv()
	if err != nil {
		t.Fatal(err)
	}
	a := res.GetBucketAction()[0]
	bucket, assigned := a.GetBucketId().GetBucket(), a.GetQuotaAssignmentAction()
	if len(bucket) != 2 || bucket["a"] != "1" || bucket["b"] != "2" ||
		assigned.GetRateLimitStrategy().GetBlanketRule() != typepb.RateLimitStrategy_ALLOW_ALL ||
		assigned.GetAssignmentTimeToLive().AsDuration() != ttl {
		t.Errorf("%v", res)
	}
	got := s.Stats()
	if got.Streams != 1 || got.Reports != 1 || got.Allowed != 3 || got.Denied != 1 {
		t.Errorf("%+v", got)
	}
	_ = st.CloseSend()
	proctest.Eventually(t, "the stream ends", func() bool { return s.Stats().Streams == 0 })
}

func TestWrongMessagesEndTheStream(t *testing.T) {
	s := serve(t, unlimited)
	ok := report("shop", usage(1, 0, "a", "1"))
	long := strings.Repeat("x", maxDomain+1)
	for _, tt := range []struct {
		messages []*pb.RateLimitQuotaUsageReports
		want     string
	}{
		{[]*pb.RateLimitQuotaUsageReports{report("", usage(1, 0, "a", "1"))}, "domain: must not be empty in the first message; set the domain of Envoy's quota filter"},
		{[]*pb.RateLimitQuotaUsageReports{ok, report("other")}, `domain: this stream is for "shop", got "other"; open another stream for each domain`},
		{[]*pb.RateLimitQuotaUsageReports{report(long)}, "domain: must be at most 200 bytes, got 201"},
		{[]*pb.RateLimitQuotaUsageReports{ok, report("", usage(1, 0, "a", "1"), usage(1, 0, "", "1"))}, "bucket_quota_usages[1].bucket_id.bucket: a key is empty; name each entry of the bucket"},
	} {
		st := s.open(t)
		for _, m := range tt.messages {
			send(t, st, m)
		}
		var err error
		for err == nil {
			_, err = st.Recv()
		}
		if status.Code(err) != codes.InvalidArgument || status.Convert(err).Message() != tt.want {
			t.Errorf("%v: want %s", err, tt.want)
		}
	}
	if got := s.Stats(); got.InvalidEnded != 4 {
		t.Errorf("%+v", got)
	}
}

// Entries that a client of Envoy causes never end the stream, since all its buckets share it: also one that is not
// UTF-8, which protobuf itself refuses.
func TestUnusableBucketsAreLeftOut(t *testing.T) {
	resolve, _ := rulesOf(t, "domain: shop\ndescriptors: [{key: none}]\n")
	s := serve(t, resolve)
	st := s.open(t)
	wire, err := gproto.Marshal(report("shop", usage(1, 0, "a", "??"), usage(1, 0, "a", ""), usage(1, 0),
		usage(1, 0, "a", strings.Repeat("x", MaxIDBytes)), usage(1, 0, "a", "1")))
	if err != nil {
		t.Fatal(err)
	}
	wire = bytes.Replace(wire, []byte("??"), []byte("\xff\xc0"), 1)
	if err := st.(grpc.ClientStream).SendMsg(encoded(wire)); err != nil { //nolint:forcetypeassert,errcheck // generated
		t.Fatal(err)
	}
	proctest.Eventually(t, "the bucket that is usable has an assignment", func() bool {
		res, err := st.Recv()
		return err != nil || slices.ContainsFunc(res.GetBucketAction(), func(a *pb.RateLimitQuotaResponse_BucketAction) bool {
			return a.GetQuotaAssignmentAction() != nil && a.GetBucketId().GetBucket()["a"] == "1"
		})
	})
	if got := s.Stats(); got.Refused != 4 || got.Buckets != 1 || strings.Count(s.log.String(), "a bucket gets no assignment") != 1 {
		t.Errorf("%+v\n%s", got, s.log.String())
	}
}

// encoded is a message that is encoded already.
type encoded []byte

// rawCodec sends encoded messages.
type rawCodec struct{ encoding.CodecV2 }

func (c rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	if wire, ok := v.(encoded); ok {
		return mem.BufferSlice{mem.SliceBuffer(wire)}, nil
	}
	return c.CodecV2.Marshal(v)
}

// A stream that is not read keeps the newest assignment of each bucket, and few buckets to abandon.
func TestSlowStreamsKeepTheNewest(t *testing.T) {
	k := serve(t, unlimited).Keeper
	s := k.Open("", "shop")
	defer s.Close()
	for i := range uint32(5 * maxBuckets) {
		s.put(Assignment{ID: "a", Strategy: TokenBucket, MaxTokens: i})
		s.put(Assignment{ID: BucketID(strconv.Itoa(int(i))), Strategy: Abandon})
	}
	s.put(Assignment{ID: "b", Strategy: DenyAll})
	all := s.take()
	if len(all) != 2*maxBuckets+1 || len(s.take()) != 0 {
		t.Errorf("%d are pending, want %d", len(all), 2*maxBuckets+1)
	}
	for _, a := range all {
		if a.ID == "a" && a.MaxTokens != 5*maxBuckets-1 {
			t.Errorf("%+v is not the newest", a)
		}
	}
}

// A host alone gets half of the buckets, so that others get some, too. Stop ends all streams.
func TestBucketsAreBoundedByHost(t *testing.T) {
	s := serve(t, unlimited)
	s.mu.Lock()
	s.bucketsOf.most = 2
	s.mu.Unlock()
	st := s.open(t)
	send(t, st, report("shop", usage(1, 0, "a", "1"), usage(1, 0, "a", "2")))
	proctest.Eventually(t, "one of two buckets is dropped", func() bool { return s.Stats().Dropped == 1 })
	if !strings.Contains(s.log.String(), "host=bufconn") {
		t.Errorf("the log does not name the host: %s", s.log)
	}
	s.mu.Lock()
	if !s.bucketsOf.take("another host") || s.bucketsOf.take("another host") {
		t.Errorf("another host gets none of the rest, or all: %+v", s.bucketsOf)
	}
	s.mu.Unlock()
	s.Stop(t.Context())
	var err error
	for err == nil {
		_, err = st.Recv()
	}
	if _, later := s.open(t).Recv(); !errors.Is(err, io.EOF) || !errors.Is(later, io.EOF) {
		t.Errorf("streams end at Stop with %v, and after it with %v", err, later)
	}
}

// A client that sends more usages than an Envoy is read more slowly.
func TestUsagesArePaced(t *testing.T) {
	s := serve(t, unlimited)
	st := s.open(t)
	m := report("shop")
	for range usagesAtOnce + usagesPerSecond/2 {
		m.BucketQuotaUsages = append(m.BucketQuotaUsages, usage(0, 0, "a", "1"))
	}
	send(t, st, m)
	proctest.Eventually(t, "the first message is read", func() bool { return s.Stats().Reports == 1 })
	began := time.Now()
	send(t, st, report("shop"))
	proctest.Eventually(t, "the second message is read", func() bool { return s.Stats().Reports == 2 })
	if took := time.Since(began); took < 100*time.Millisecond {
		t.Errorf("after half a second's usages too many, the next message is read in %s", took)
	}
}

func TestPanicInAReportEndsOnlyTheStream(t *testing.T) {
	s := serve(t, func(string, BucketID) Target { panic("a fault") })
	st := s.open(t)
	send(t, st, report("shop", usage(1, 0, "a", "1")))
	if _, err := st.Recv(); status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "a fault") {
		t.Error(err)
	}
}

// A usage of two bytes must not take a hundred times as much memory, in a message of millions.
func TestTooManyUsages(t *testing.T) {
	for n, want := range map[int]string{maxUsages: "", maxUsages + 1: "must be at most 200000, got 200001"} {
		wire := mem.BufferSlice{mem.SliceBuffer(bytes.Repeat([]byte{2<<3 | 2, 0}, n))}
		err := Codec(encoding.GetCodecV2(proto.Name)).Unmarshal(wire, &pb.RateLimitQuotaUsageReports{})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%d usages: %v, want %q", n, err, want)
		}
	}
}

func FuzzUnmarshal(f *testing.F) {
	f.Add([]byte{10, 1, 'a', 18, 6, 10, 4, 10, 2, 10, 0})
	of := Codec(encoding.GetCodecV2(proto.Name))
	f.Fuzz(func(t *testing.T, wire []byte) {
		var m pb.RateLimitQuotaUsageReports
		if of.Unmarshal(mem.BufferSlice{mem.SliceBuffer(wire)}, &m) != nil {
			return
		}
		usages, err := usagesOf(&m)
		for _, u := range usages {
			if u.Elapsed < 0 || u.Elapsed > maxElapsed {
				t.Fatalf("elapsed %s", u.Elapsed)
			}
			if _, err := gproto.Marshal(responseOf([]Assignment{{ID: u.ID}, {ID: u.ID, Strategy: Abandon}})); err != nil {
				t.Fatalf("%q: %v", u.ID, err)
			}
		}
		if err != nil && len(usages) > 0 {
			t.Fatalf("%v, and usages", err)
		}
	})
}
