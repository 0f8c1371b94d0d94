package rls

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// asMessage is what report has to encode, made of protobuf's objects.
func (sc *scratch) asMessage(failed bool) *pb.RateLimitResponse {
	res := &pb.RateLimitResponse{OverallCode: pb.RateLimitResponse_OK, DynamicMetadata: sc.allMetadata(failed)}
	for i := range sc.questions {
		res.Statuses = append(res.Statuses, sc.statusMessage(&sc.questions[i], failed))
	}
	add := func(key, value string) {
		res.ResponseHeadersToAdd = append(res.ResponseHeadersToAdd, &corepb.HeaderValue{Key: key, Value: value})
	}
	if st := nearestMessage(res.GetStatuses()); st != nil && sc.o.LimitHeaders.Limit != "" && !failed {
		add(sc.o.LimitHeaders.Limit, strconv.FormatUint(uint64(st.GetCurrentLimit().GetRequestsPerUnit()), 10))
		add(sc.o.LimitHeaders.Remaining, strconv.FormatUint(uint64(st.GetLimitRemaining()), 10))
		add(sc.o.LimitHeaders.Reset, strconv.FormatInt(st.GetDurationUntilReset().GetSeconds(), 10))
	}
	if !sc.over {
		return res
	}
	res.OverallCode = pb.RateLimitResponse_OVER_LIMIT
	if longest := sc.retryAfter(); longest != limiter.Never {
		add("Retry-After", strconv.FormatInt(ceilSeconds(longest), 10))
	}
	if told := sc.told(); told != nil {
		for _, h := range told.Headers {
			add(h.Name, h.Value)
		}
		res.RawBody = []byte(told.Body)
	}
	return res
}

// nearestMessage is the status that envoyproxy/ratelimit makes headers of.
func nearestMessage(all []*pb.RateLimitResponse_DescriptorStatus) (nearest *pb.RateLimitResponse_DescriptorStatus) {
	least := uint64(math.MaxUint64)
	for _, st := range all {
		if over := st.GetCode() == pb.RateLimitResponse_OVER_LIMIT; st.GetCurrentLimit() != nil && (over || uint64(st.GetLimitRemaining()) < least) {
			nearest, least = st, uint64(st.GetLimitRemaining())
			if over {
				least = 0
			}
		}
	}
	return nearest
}

func (sc *scratch) statusMessage(q *question, failed bool) *pb.RateLimitResponse_DescriptorStatus {
	st := &pb.RateLimitResponse_DescriptorStatus{Code: pb.RateLimitResponse_OK}
	if q.first == q.last {
		if q.rule != nil && q.rule.Unlimited && len(q.limits) == 0 {
			st.LimitRemaining = math.MaxUint32
		}
		return st
	}
	l, d := sc.limits[q.tightest], &sc.out[q.tightest]
	wait := d.ResetAfter
	if !d.Allowed && sc.hits[q.tightest].Mode != limiter.Shadow {
		st.Code = pb.RateLimitResponse_OVER_LIMIT
		if d.RetryAfter != limiter.Never {
			wait = d.RetryAfter
		}
	}
	st.CurrentLimit = &pb.RateLimitResponse_RateLimit{
		Name: l.Name, RequestsPerUnit: saturate(l.Policy.Limit()), Unit: wireUnits[l.Unit],
	}
	if l.UnitMultiplier > 1 {
		st.CurrentLimit.UnitMultiplier = wrapperspb.UInt32(l.UnitMultiplier)
	}
	st.LimitRemaining = saturate(d.Remaining)
	if !failed {
		st.DurationUntilReset = &durationpb.Duration{Seconds: ceilSeconds(wait)}
	}
	return st
}

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
  - {key: none, rate_limit: {unit: second, requests_per_unit: 0}}
  - {key: lease, rate_limit: {algorithm: concurrency, requests_per_unit: 5, lease: 60s}}
`)
	for i, unit := range []string{"second", "minute", "hour", "day", "week", "month", "year"} {
		limit := []int{1, 127, 128, math.MaxInt32, math.MaxUint32, 300, 70_000}[i]
		fmt.Fprintf(&b, "  - {key: k%d, rate_limit: {name: %s, unit: %s, unit_multiplier: %d, requests_per_unit: %d}}\n",
			i, strings.Repeat("é", 1+i*22), unit, 1+i, limit)
	}
	return b.String()
}

// folded is an answer to the descriptors, and of the decisions, that data chooses: a third of it the descriptors.
func folded(set *descriptors.Set, o *Options, data []byte) *scratch {
	next := func(n int) int {
		if len(data) == 0 {
			return 0
		}
		b := data[0]
		data = data[1:]
		return int(b) % n
	}
	wide := func() int64 { return int64(next(256)) << next(40) >> next(8) }
	sc := &scratch{o: o, domain: strings.Repeat("shop", next(3)), addend: uint32(next(3))}
	keys := []string{
		"east", "west", "plain", "trial", "free", "known", "odd", "none", "lease", "nobody", "told", "body", "quota",
		"k0", "k1", "k2", "k3", "k4", "k5", "k6",
	}
	for decisions := len(data) * 2 / 3; len(data) > decisions; {
		q := question{from: len(sc.entries), to: len(sc.entries) + 1, n: wide() - 1}
		sc.entries = append(sc.entries, descriptors.Entry{Key: keys[next(len(keys))], Value: "é"})
		if next(4) == 0 {
			q.own, q.window = override{requests: uint32(wide())}, time.Duration(1+next(100))*time.Second
		}
		sc.questions = append(sc.questions, q)
	}
	if sc.match(set.Domain("shop")) != nil {
		return nil
	}
	if sc.count() != nil {
		return nil
	}
	for i := range sc.out {
		sc.out[i] = limiter.Decision{
			Allowed: next(3) > 0, Remaining: wide() - 1, RetryAfter: time.Duration(wide()), ResetAfter: time.Duration(wide()),
		}
		if next(4) == 0 {
			sc.out[i].RetryAfter = limiter.Never
		}
	}
	sc.fold()
	return sc
}

func FuzzEncode(f *testing.F) {
	f.Add([]byte{}, false, false)
	f.Add([]byte("0123456789abcdefghijklmnopqrstuvwxyz"), false, true)
	f.Add([]byte("one"), true, false)
	f.Add(bytes.Repeat([]byte("some descriptors, of which each has a status "), 9), true, true)
	set := compile(f, encodingRules())
	f.Fuzz(func(t *testing.T, data []byte, metadata, failed bool) {
		o := &Options{DynamicMetadata: metadata}
		if len(data)%2 == 0 {
			o.LimitHeaders = LimitHeaders{"RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"}
		}
		sc := folded(set, o, data)
		if sc == nil {
			return
		}
		res := sc.asMessage(failed)
		want, err := proto.MarshalOptions{Deterministic: true}.Marshal(res)
		if err != nil {
			t.Fatal(err)
		}
		r, err := sc.report(failed)
		if err != nil {
			t.Fatal(err)
		}
		encoded, err := Codec().Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		got := &pb.RateLimitResponse{}
		if err := proto.Unmarshal(encoded.Materialize(), got); err != nil {
			t.Fatalf("the response cannot be read: %v\n%x\nwant %x", err, encoded.Materialize(), want)
		}
		if !proto.Equal(res, got) {
			t.Fatalf("(-want +got):\n%s", cmp.Diff(res, got, protocmp.Transform()))
		}
		if !bytes.Equal(encoded.Materialize(), want) {
			t.Fatalf("the same message in other bytes:\n got %x\nwant %x", encoded.Materialize(), want)
		}
	})
}

// A message inside another one has its length before it, of any size.
func TestEnd(t *testing.T) {
	for _, size := range []int{0, 1, 127, 128, 16383, 16384, 1 << 21} {
		body := bytes.Repeat([]byte("x"), size)
		dst, start := begin([]byte("before"), 5)
		if got, want := end(append(dst, body...), start), append([]byte("before"), field(5, body)...); !bytes.Equal(got, want) {
			t.Errorf("%d bytes: got %x..., want %x...", size, got[:min(len(got), 16)], want[:min(len(want), 16)])
		}
	}
}

// An answer stays as it was when its request's memory is used for another one.
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

// One allocation for all text of a request, and one for a short answer, also if it denies.
func TestCodecAllocatesOnce(t *testing.T) {
	data := marshal(t, request(descriptor("k0=10.0.0.1"), costing(7, descriptor("known=a", "deeper=b")), descriptor("free=1")))
	sc := &scratch{o: &boundless}
	if err := errors.Join(sc.decode(data), sc.findHits(compile(t, encodingRules()))); err != nil {
		t.Fatal(err)
	}
	sc.out[0].RetryAfter = time.Hour
	sc.fold()
	var err error
	if n := testing.AllocsPerRun(100, func() { _, err = sc.report(false) }); n > 1 || !sc.over || err != nil {
		t.Errorf("report of over %t: %v allocations, error %v", sc.over, n, err)
	}
	decode := func() {
		sc.reset()
		err = sc.decode(data)
	}
	if n := testing.AllocsPerRun(100, decode); n > 1 || err != nil {
		t.Errorf("decode: %v allocations, error %v", n, err)
	}
}
