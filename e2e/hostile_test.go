//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// raw is a codec that sends bytes as they are.
type raw struct{}

func (raw) Name() string { return "proto" }
func (raw) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil //nolint:errcheck // only used with bytes
}
func (raw) Unmarshal(mem.BufferSlice, any) error { return nil }

var _ encoding.CodecV2 = raw{}

// Whatever a client sends, the process survives, and the counter of another client counts only that client's
// requests.
func TestHostileRequests(t *testing.T) {
	const limit = 40
	each := casetest.Pick(1200, 4000)
	for _, store := range []string{"memory", "redis"} {
		t.Run(store, func(t *testing.T) {
			args := []string{"--store", "memory"}
			if store == "redis" {
				args = []string{"--store", redistest.Start(t).URL(), "--store-timeout", "5s"}
			}
			s := startWeir(t, ruleFile(t, `
domain: shop
descriptors:
  - key: tenant
    rate_limit: {algorithm: sliding_log, requests_per_unit: 40, unit: day}
    descriptors:
      - {key: user, rate_limit: {algorithm: sliding_log, requests_per_unit: 40, unit: day}}
  - {key: tenants, rate_limit: {algorithm: sliding_log, requests_per_unit: 40, unit: day}}
`), args...)
			conn := dial(t, s.GRPC)
			victim := pb.NewRateLimitServiceClient(conn)
			passed := 0
			ask := func() {
				res, err := victim.ShouldRateLimit(t.Context(), question("tenant", "ann"))
				if err != nil {
					t.Fatal(err)
				}
				if res.GetOverallCode() == pb.RateLimitResponse_OK {
					passed++
				}
			}
			random := rand.New(rand.NewPCG(1, 2))
			seen := map[codes.Code]int{}
			for i := range each {
				if i%(each/limit) == 0 {
					ask()
				}
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				err := conn.Invoke(ctx, pb.RateLimitService_ShouldRateLimit_FullMethodName, hostile(t, random), &struct{}{},
					grpc.ForceCodecV2(raw{}))
				cancel()
				seen[status.Code(err)]++
			}
			t.Logf("answers: %v; the other's: %d passed", seen, passed)
			if passed != limit {
				t.Errorf("%d of the other's %d requests passed under a limit of %d", passed, limit, limit)
			}
			if ask(); passed != limit {
				t.Errorf("a request beyond the limit passed")
			}
			for code := range seen {
				if code != codes.OK && code != codes.InvalidArgument && code != codes.Internal {
					t.Errorf("%d requests ended with %s", seen[code], code)
				}
			}
			if seen[codes.OK] == 0 || seen[codes.InvalidArgument]+seen[codes.Internal] == 0 {
				t.Error("all were answered alike: the test proves nothing")
			}
			if strings.Contains(s.Output(), "panic") {
				t.Error("a request panicked")
			}
		})
	}
}

func question(pairs ...string) *pb.RateLimitRequest {
	d := &common.RateLimitDescriptor{}
	for i := 0; i < len(pairs); i += 2 {
		d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: pairs[i], Value: pairs[i+1]})
	}
	return &pb.RateLimitRequest{Domain: "shop", Descriptors: []*common.RateLimitDescriptor{d}}
}

// hostile returns the bytes of a request that imitates tenant ann's, or that tries to break something.
func hostile(t *testing.T, random *rand.Rand) []byte {
	t.Helper()
	pick := func(of ...string) string { return of[random.IntN(len(of))] }
	values := []string{
		"ann\x00", "ann\n", "ann|", "Ann", "ann ", "", "\x00", "ann=", "\xff\xfe", "a\u0301nn", "ann\r\nDEL *", "ann_user",
		"{ann}", "weir:1:", "ann|user=x", "ann\x1fuser", strings.Repeat("a", 300), strings.Repeat("a", 70_000),
	}
	q := question(pick("tenant", "tenants", "tenant\x00", "tenant_ann", "ten", "tenant|ann"), pick(values...))
	if random.IntN(3) == 0 {
		q = question("tenant", pick("ann", "bob"), pick("user", "", "user\x00"),
			pick(values...)) // the level below ann's counter
	}
	q.Domain = pick("shop", "shop", "shop", "shop\x00", "shop|tenant", "")
	q.Descriptors[0].HitsAddend = wrapperspb.UInt64([]uint64{0, 1, 1 << 31, math.MaxUint64}[random.IntN(4)])
	q.Descriptors[0].IsNegativeHits = random.IntN(4) == 0
	q.HitsAddend = random.Uint32()
	data, err := proto.MarshalOptions{AllowPartial: true}.Marshal(q)
	if err != nil { // text that is not UTF-8: then the bytes are put where other ones were
		q.Descriptors[0].Entries[len(q.Descriptors[0].Entries)-1].Value = "XX"
		if data, err = proto.Marshal(q); err != nil {
			t.Fatal(fmt.Errorf("%v: %w", q, err))
		}
		data = []byte(strings.Replace(string(data), "XX", "\xff\xfe", 1))
	}
	switch random.IntN(4) {
	case 0: // cut
		data = data[:random.IntN(len(data)+1)]
	case 1: // with an absurd length somewhere
		data = append(data, 0x12, 0xff, 0xff, 0xff, 0xff, byte(random.IntN(16)))
	case 2:
		if at := random.IntN(len(data) + 1); at < len(data) && !strings.Contains(string(data), "ann") {
			data[at] ^= byte(1 + random.IntN(255))
		}
	}
	return data
}
