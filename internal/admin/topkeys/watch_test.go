package topkeys

import (
	"context"
	"fmt"
	"strings"
	"testing"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/rls"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
)

// service is a real one over rules, watched or not, that is asked without a network.
type service struct {
	impl   any
	method grpc.MethodHandler
}

// RegisterService implements grpc.ServiceRegistrar.
func (s *service) RegisterService(d *grpc.ServiceDesc, impl any) {
	s.impl, s.method = impl, d.Methods[0].Handler
}

func newService(tb testing.TB, rules string, watchers ...decide.Watcher) *service {
	tb.Helper()
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := store.Close(); err != nil {
			tb.Error(err)
		}
	})
	set := compile(tb, rules)
	d, err := decide.New(decide.Options{Rules: func() *descriptors.Set { return set }, Store: store, Watchers: watchers})
	if err != nil {
		tb.Fatal(err)
	}
	r, err := rls.New(rls.Options{Decider: d})
	if err != nil {
		tb.Fatal(err)
	}
	s := &service{}
	r.Register(s)
	return s
}

// request is one of descriptors like key=value,key=value.
func request(tb testing.TB, texts ...string) *pb.RateLimitRequest {
	tb.Helper()
	req := &pb.RateLimitRequest{Domain: "shop"}
	for _, text := range texts {
		entries, err := descriptors.ParseEntries(text)
		if err != nil {
			tb.Fatal(err)
		}
		d := &common.RateLimitDescriptor{}
		for _, e := range entries {
			d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: e.Key, Value: e.Value})
		}
		req.Descriptors = append(req.Descriptors, d)
	}
	return req
}

func marshal(tb testing.TB, req *pb.RateLimitRequest) mem.BufferSlice {
	tb.Helper()
	data, err := proto.Marshal(req)
	if err != nil {
		tb.Fatal(err)
	}
	return mem.BufferSlice{mem.SliceBuffer(data)}
}

// ask asks, and encodes the answer as the server does.
func (s *service) ask(tb testing.TB, data mem.BufferSlice) {
	tb.Helper()
	codec := rls.Codec()
	res, err := s.method(s.impl, context.Background(), func(v any) error { return codec.Unmarshal(data, v) }, nil)
	if err == nil {
		_, err = codec.Marshal(res)
	}
	if err != nil {
		tb.Fatal(err)
	}
}

// Of a request each descriptor counts once, whatever limits its rule has: with its cost, and as denied if a limit of
// its own does not let it pass, in whatever mode. What costs nothing, what gives back, and what no limit is for is not
// counted.
func TestWatch(t *testing.T) {
	top := newTop(t, Options{PerRule: 10})
	s := newService(t, `
domain: shop
descriptors:
  - key: user
    rate_limits:
      - {name: short, requests_per_unit: 100, unit: hour}
      - {name: long, requests_per_unit: 4, unit: day}
  - {key: path, shadow_mode: true, rate_limit: {requests_per_unit: 1, unit: hour}}
  - {key: plain}
`, top)
	costly := func(n uint64, give bool) *pb.RateLimitRequest {
		req := request(t, "user=bob")
		req.Descriptors[0].HitsAddend, req.Descriptors[0].IsNegativeHits = wrapperspb.UInt64(n), give
		return req
	}
	for _, req := range []*pb.RateLimitRequest{
		request(t, "user=ann", "path=/a", "plain=x", "none=y"), // all fits
		request(t, "user=ann", "path=/a"),                      // path does not, which is only shadow
		costly(3, false),                                       // fits
		costly(2, false),                                       // does not: of 4 a day, 3 are used
		costly(0, false),
		costly(3, true),
		request(t, "user=bob", "path=/b"),
	} {
		s.ask(t, marshal(t, req))
	}
	var got []string
	for _, k := range keys(t, top, Query{By: adminapi.ByHits, N: 10}) {
		got = append(got, fmt.Sprintf("%s %d %d", k.Descriptor, k.Hits, k.Denied))
	}
	want := "user=bob 6 2; user=ann 2 0; path=/a 2 1; path=/b 1 0"
	if text := strings.Join(got, "; "); text != want {
		t.Errorf("key, hits, denied: %s; want %s", text, want)
	}
}
