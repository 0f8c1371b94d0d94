package rls

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	gocmp "github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/decide/metadata"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// asMessage returns the response that report must encode, as protobuf's objects.
func (c *call) asMessage(v *decide.Verdict, names decide.LimitHeaders) *pb.RateLimitResponse {
	res := &pb.RateLimitResponse{
		OverallCode: pb.RateLimitResponse_OK,
	}
	if data := metadata.Append(nil, v, c); len(data) > 0 {
		if res.DynamicMetadata = new(structpb.Struct); proto.Unmarshal(data, res.DynamicMetadata) != nil {
			return nil
		}
	}
	for i := range v.Statuses {
		res.Statuses = append(res.Statuses, statusMessage(v, &v.Statuses[i]))
	}
	add := func(key, value string) {
		res.ResponseHeadersToAdd = append(res.ResponseHeadersToAdd, &corepb.HeaderValue{Key: key, Value: value})
	}
	if st := nearestMessage(res.GetStatuses()); st != nil && names.Limit != "" && !v.Failed() {
		add(names.Limit, strconv.FormatUint(uint64(st.GetCurrentLimit().GetRequestsPerUnit()), 10))
		add(names.Remaining, strconv.FormatUint(uint64(st.GetLimitRemaining()), 10))
		add(names.Reset, strconv.FormatInt(st.GetDurationUntilReset().GetSeconds(), 10))
	}
	if !v.Denied {
		return res
	}
	res.OverallCode = pb.RateLimitResponse_OVER_LIMIT
	if longest := v.RetryAfter(); longest != limiter.Never {
		add("Retry-After", strconv.FormatInt(decide.CeilSeconds(longest), 10))
	}
	if response := v.Response(); response != nil {
		for _, h := range response.Headers {
			add(h.Name, h.Value)
		}
		res.RawBody = []byte(response.Body)
	}
	return res
}

// nearestMessage returns the status from which envoyproxy/ratelimit makes headers.
func nearestMessage(all []*pb.RateLimitResponse_DescriptorStatus) (nearest *pb.RateLimitResponse_DescriptorStatus) {
	least := uint64(math.MaxUint64)
	for _, st := range all {
		if over := st.GetCode() == pb.RateLimitResponse_OVER_LIMIT; st.GetCurrentLimit() != nil &&
			(over || uint64(st.GetLimitRemaining()) < least) {
			nearest, least = st, uint64(st.GetLimitRemaining())
			if over {
				least = 0
			}
		}
	}
	return nearest
}

// tightestOf returns the hit that a status shows.
func tightestOf(v *decide.Verdict, st *decide.Status) int {
	first, last := st.Hits()
	fits := map[bool]int{true: 1}
	all := make([]int, 0, last-first)
	for ; first < last; first++ {
		all = append(all, first)
	}
	return slices.MinFunc(all, func(i, j int) int {
		a, b := &v.Decisions[i], &v.Decisions[j]
		return cmp.Or(cmp.Compare(fits[a.Allowed], fits[b.Allowed]), cmp.Compare(a.Remaining, b.Remaining),
			cmp.Compare(b.RetryAfter, a.RetryAfter), cmp.Compare(b.ResetAfter, a.ResetAfter))
	})
}

func statusMessage(v *decide.Verdict, status *decide.Status) *pb.RateLimitResponse_DescriptorStatus {
	st := &pb.RateLimitResponse_DescriptorStatus{Code: pb.RateLimitResponse_OK}
	if first, last := status.Hits(); first == last {
		if status.Unlimited {
			st.LimitRemaining = math.MaxUint32
		}
		return st
	}
	tightest := tightestOf(v, status)
	l, d := v.Limits[tightest], &v.Decisions[tightest]
	wait := d.ResetAfter
	if !d.Allowed && v.Hits[tightest].Mode != limiter.Shadow {
		st.Code = pb.RateLimitResponse_OVER_LIMIT
		if p := v.Hits[tightest].Policy; d.RetryAfter != limiter.Never {
			wait = d.RetryAfter
		} else if p.Algorithm() != limiter.FixedWindow {
			wait = p.Window()
		}
	}
	if !v.Counted(tightest) { // Envoy makes no headers of it
		return st
	}
	st.CurrentLimit = &pb.RateLimitResponse_RateLimit{
		Name: l.Name, RequestsPerUnit: decide.Saturate(l.Policy.Limit()), Unit: wireUnits[l.Unit],
	}
	if l.UnitMultiplier > 1 {
		st.CurrentLimit.UnitMultiplier = wrapperspb.UInt32(l.UnitMultiplier)
	}
	st.LimitRemaining = decide.Saturate(d.Remaining)
	st.DurationUntilReset = &durationpb.Duration{Seconds: decide.CeilSeconds(wait)}
	return st
}

// metadataRules have metadata.
const metadataRules = `
domain: shop
descriptors:
  - key: east
    quota_mode: true
    rate_limit: {name: east, unit: minute, requests_per_unit: 1}
    metadata: {backend: east, limits: {tokens: 10, region: e}, tags: [a, b]}
  - key: west
    quota_mode: true
    rate_limit: {name: west, unit: minute, requests_per_unit: 9}
    metadata: {backend: west, limits: {tokens: 20, cost: 0.5}}
  - {key: plain, rate_limit: {name: plain, unit: minute, requests_per_unit: 1}}
  - key: trial
    shadow_mode: true
    rate_limit: {name: trial, unit: minute, requests_per_unit: 1}
    metadata: {trial: true}
`

// encodingRules have limits of all units, names of all lengths, all modes, and metadata.
func encodingRules() string {
	var b strings.Builder
	b.WriteString(metadataRules + `
  - {key: free, rate_limit: {unlimited: true}}
  - {key: known}
  - {key: odd, rate_limit: {algorithm: funnel, window: 1500ms, requests_per_unit: 1}}
  - {key: told, response: {headers: {A: b, C: ''}, body: no}, rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: body, response: {body: ` + strings.Repeat("long ", 99) + `}, rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: quota, quota_mode: true, response: {headers: {Q: r}}, rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: none, rate_limit: {unit: second, requests_per_unit: 0, on_store_failure: local}}
  - {key: lease, rate_limit: {algorithm: concurrency, requests_per_unit: 5, lease: 60s}}
`)
	for i, unit := range []string{"second", "minute", "hour", "day", "week", "month", "year"} {
		limit := []int{1, 127, 128, math.MaxInt32, math.MaxUint32, 300, 70_000}[i]
		fmt.Fprintf(&b, "  - {key: k%d, rate_limit: {name: %s, unit: %s, unit_multiplier: %d, requests_per_unit: %d}}\n",
			i, strings.Repeat("é", 1+i*22), unit, 1+i, limit)
	}
	return b.String()
}

// decided returns a call and its verdict. The first third of data chooses the descriptors, the rest the decisions. The
// verdict is nil if there is none.
func decided(tb testing.TB, set *descriptors.Set, data []byte, change func(*options)) (*call, *decide.Verdict) {
	tb.Helper()
	next := func(n int) int {
		if len(data) == 0 {
			return 0
		}
		b := data[0]
		data = data[1:]
		return int(b) % n
	}
	wide := func() int64 { return int64(next(256)) << next(40) >> next(8) }
	choose := func(_ context.Context, _ []limiter.Hit, out []limiter.Decision) error {
		for i := range out {
			out[i] = limiter.Decision{
				Allowed: next(3) > 0, Remaining: wide() - 1,
				RetryAfter: time.Duration(wide()), ResetAfter: time.Duration(wide()),
			}
			if next(4) == 0 {
				out[i].RetryAfter = limiter.Never
			}
		}
		return nil
	}
	s, _ := service(tb, "{domain: none, descriptors: [{key: none}]}", func(o *options) {
		o.Rules = func() *descriptors.Set { return set }
		o.Store, o.Local = storeFunc(choose), storeFunc(choose)
		o.MaxDescriptors, o.MaxCounters = math.MaxInt, math.MaxInt
		change(o)
	})
	c := s.get()
	c.Domain, c.addend = strings.Repeat("shop", next(3)), uint32(next(3))
	keys := []string{
		"east", "west", "plain", "trial", "free", "known", "odd", "none", "lease", "nobody", "told", "body", "quota",
		"k0", "k1", "k2", "k3", "k4", "k5", "k6",
	}
	for decisions := len(data) * 2 / 3; len(data) > decisions; {
		d := decide.Descriptor{Cost: wide() - 1, Entries: []descriptors.Entry{{Key: keys[next(len(keys))], Value: "é"}}}
		if next(4) == 0 {
			d.Own = decide.OwnLimit{Requests: uint32(wide()), Window: time.Duration(1+next(100)) * time.Second}
		}
		c.Add(d)
		c.wire = append(c.wire, wireDescriptor{})
	}
	if s.o.Decider.Decide(c.Request); c.Err != nil {
		return c, nil
	}
	held := c.Verdict.TakeHeld()
	held.Release(context.Background())
	return c, &c.Verdict
}

func FuzzEncode(f *testing.F) {
	f.Add([]byte{}, false, false)
	f.Add([]byte("0123456789abcdefghijklmnopqrstuvwxyz"), false, true)
	f.Add([]byte("\x01ne"), true, false)
	f.Add(bytes.Repeat([]byte("some descriptors, of which each has a status "), 9), true, true)
	f.Add(bytes.Repeat([]byte("Some descriptors, of which each has a status "), 9), false, false)
	set := compile(f, encodingRules())
	f.Fuzz(func(t *testing.T, data []byte, metadata, failed bool) {
		var names decide.LimitHeaders
		if len(data)%2 == 0 {
			names = decide.LimitHeaders{Limit: "RateLimit-Limit", Remaining: "RateLimit-Remaining", Reset: "RateLimit-Reset"}
		}
		c, v := decided(t, set, data, func(o *options) {
			o.DynamicMetadata, o.RatelimitHeaders, o.LimitHeaders = metadata, names != decide.LimitHeaders{}, names
			if failed {
				o.Store = storeFunc(down)
			}
		})
		if v == nil {
			return
		}
		res := c.asMessage(v, names)
		want, err := proto.MarshalOptions{Deterministic: true}.Marshal(res)
		if err != nil {
			t.Fatal(err)
		}
		encoded, err := Codec().Marshal(c.report(v))
		if err != nil {
			t.Fatal(err)
		}
		got := &pb.RateLimitResponse{}
		if err := proto.Unmarshal(encoded.Materialize(), got); err != nil {
			t.Fatalf("the response cannot be read: %v\n%x\nwant %x", err, encoded.Materialize(), want)
		}
		if !proto.Equal(res, got) {
			t.Fatalf("(-want +got):\n%s", gocmp.Diff(res, got, protocmp.Transform()))
		}
		if !bytes.Equal(encoded.Materialize(), want) {
			t.Fatalf("the same message in other bytes:\n got %x\nwant %x", encoded.Materialize(), want)
		}
	})
}

// A nested message of any size has its length before it.
func TestEnd(t *testing.T) {
	for _, size := range []int{0, 1, 127, 128, 16383, 16384, 1 << 21} {
		body := bytes.Repeat([]byte("x"), size)
		dst, start := begin([]byte("before"), 5)
		if got, want := end(
			append(dst, body...),
			start,
		), append(
			[]byte("before"),
			field(5, body)...); !bytes.Equal(
			got,
			want,
		) {
			t.Errorf("%d bytes: got %x..., want %x...", size, got[:min(len(got), 16)], want[:min(len(want), 16)])
		}
	}
}

// A response does not change when its request's memory is reused.
func TestReplyIsACopy(t *testing.T) {
	for _, size := range []int{0, 10, 72, 73, 500} {
		response := bytes.Repeat([]byte("x"), size)
		r := newReply(response)
		copy(response, bytes.Repeat([]byte("y"), size))
		if got := string(r.buffers[0].ReadOnlyData()); got != strings.Repeat("x", size) {
			t.Errorf("got %q", got)
		}
	}
}

// All text of a request is one allocation, and so is a short response, even if it denies.
func TestCodecAllocatesOnce(t *testing.T) {
	data := marshal(
		t,
		request(descriptor("k0=10.0.0.1"), costing(7, descriptor("known=a", "deeper=b")), descriptor("free=1")),
	)
	set := compile(t, encodingRules())
	s, _ := service(t, "{domain: none, descriptors: [{key: none}]}", func(o *options) {
		o.Rules = func() *descriptors.Set { return set }
		o.Store = storeFunc(func(_ context.Context, _ []limiter.Hit, out []limiter.Decision) error {
			out[0] = limiter.Decision{RetryAfter: time.Hour}
			return nil
		})
	})
	c := s.get()
	message := mem.BufferSlice{mem.SliceBuffer(data)}
	err := c.decode(message)
	if err != nil {
		t.Fatal(err)
	}
	if s.o.Decider.Decide(c.Request); c.Err != nil {
		t.Fatal(c.Err)
	}
	v := &c.Verdict
	if n := testing.AllocsPerRun(100, func() { c.report(v) }); n > 1 || !v.Denied {
		t.Errorf("report of a denial %t: %v allocations", v.Denied, n)
	}
	decode := func() {
		c.reset()
		err = c.decode(message)
	}
	if n := testing.AllocsPerRun(100, decode); n > 1 || err != nil {
		t.Errorf("decode: %v allocations, error %v", n, err)
	}
}
