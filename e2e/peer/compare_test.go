//go:build e2e

package peer

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// answer is the result of a request.
type answer struct {
	resp          *pb.RateLimitResponse
	err           error
	before, after time.Time     // of the call
	lag           time.Duration // of Weir, see series
}

// series asks both services the same, one request after the other. Its lag is the longest call to Weir so far: where
// Weir caches a denial, it counts the time until the reset from when it sent the call that was denied, and so may show
// it by that much too short.
type series struct {
	*pair

	lag time.Duration
}

func (s *series) ask(ctx context.Context, req *pb.RateLimitRequest) (peer, weir *answer) {
	peer, weir = s.peer.ask(ctx, req), s.weir.ask(ctx, req)
	weir.lag = s.lag
	s.lag = max(s.lag, weir.after.Sub(weir.before))
	return peer, weir
}

// ask sends a request.
func (s *service) ask(ctx context.Context, req *pb.RateLimitRequest) *answer {
	a := &answer{before: time.Now()}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	a.resp, a.err = s.client.ShouldRateLimit(ctx, req)
	a.after = time.Now()
	return a
}

// String returns the answer in a line.
func (a *answer) String() string {
	if a.err != nil {
		return a.err.Error()
	}
	return line(a.resp)
}

func line(m proto.Message) string {
	if !m.ProtoReflect().IsValid() {
		return "nothing"
	}
	return strings.Join(strings.Fields(prototext.MarshalOptions{}.Format(m)), " ")
}

// differences lists the fields in which two answers differ, each as "field: peer's value, Weir's value". Seconds until
// a window ends may differ by those that passed between the two calls, and by Weir's lag.
func differences(peer, weir *answer) []string {
	if (peer.err == nil) != (weir.err == nil) {
		return []string{fmt.Sprintf("error: %v, %v", peer.err, weir.err)}
	}
	if peer.err != nil {
		return nil // Envoy treats all codes the same
	}
	d := &differ{passed: weir.after.Add(weir.lag).Unix() - peer.before.Unix()}
	a, b := proto.CloneOf(peer.resp), proto.CloneOf(weir.resp)
	d.field("overall_code", a.GetOverallCode(), b.GetOverallCode())
	d.field("number of statuses", len(a.GetStatuses()), len(b.GetStatuses()))
	if len(d.found) > 0 && len(a.GetStatuses()) != len(b.GetStatuses()) {
		return d.found
	}
	for i := range a.GetStatuses() {
		d.status(fmt.Sprintf("statuses[%d].", i), a.GetStatuses()[i], b.GetStatuses()[i])
	}
	d.headers("response_headers_to_add", a.GetResponseHeadersToAdd(), b.GetResponseHeadersToAdd())
	d.headers("request_headers_to_add", a.GetRequestHeadersToAdd(), b.GetRequestHeadersToAdd())
	d.metadata(a.GetDynamicMetadata().GetFields(), b.GetDynamicMetadata().GetFields())
	d.field("raw_body", string(a.GetRawBody()), string(b.GetRawBody()))
	d.message("quota", a.GetQuota(), b.GetQuota())
	return d.found
}

type differ struct {
	passed int64 // seconds of the clock that may have ended between the two
	found  []string
}

func (d *differ) field(name string, peer, weir any) {
	if peer != weir {
		d.found = append(d.found, fmt.Sprintf("%s: %v, %v", name, peer, weir))
	}
}

func (d *differ) message(name string, peer, weir proto.Message) {
	if !proto.Equal(peer, weir) {
		d.found = append(d.found, fmt.Sprintf("%s: {%s}, {%s}", name, line(peer), line(weir)))
	}
}

func (d *differ) status(at string, peer, weir *pb.RateLimitResponse_DescriptorStatus) {
	d.field(at+"code", peer.GetCode(), weir.GetCode())
	d.message(at+"current_limit", peer.GetCurrentLimit(), weir.GetCurrentLimit())
	d.field(at+"limit_remaining", peer.GetLimitRemaining(), weir.GetLimitRemaining())
	d.field(at+"has duration_until_reset", peer.GetDurationUntilReset() != nil, weir.GetDurationUntilReset() != nil)
	unit := windows[peer.GetCurrentLimit().GetUnit()]
	d.seconds(at+"duration_until_reset",
		peer.GetDurationUntilReset().GetSeconds(), weir.GetDurationUntilReset().GetSeconds(), unit)
	d.message(at+"quota", peer.GetQuota(), weir.GetQuota())
}

// seconds compares the seconds until a window ends.
func (d *differ) seconds(name string, peer, weir, window int64) {
	passed := peer - weir
	if passed < 0 && passed+window > 0 { // a new window has begun
		passed += window
	}
	if passed < 0 || passed > d.passed {
		d.field(name, peer, weir)
	}
}

func (d *differ) headers(name string, peer, weir []*corepb.HeaderValue) {
	d.field(name+": number", len(peer), len(weir))
	for i := range min(len(peer), len(weir)) {
		p, w := peer[i], weir[i]
		d.field(fmt.Sprintf("%s[%d].key", name, i), p.GetKey(), w.GetKey())
		if p.GetKey() == w.GetKey() && strings.HasSuffix(p.GetKey(), "Reset") {
			ps, err := strconv.ParseInt(p.GetValue(), 10, 64)
			ws, err2 := strconv.ParseInt(w.GetValue(), 10, 64)
			if err == nil && err2 == nil {
				d.seconds(p.GetKey(), ps, ws, 0)
				continue
			}
		}
		d.field(fmt.Sprintf("%s[%d] %s", name, i, p.GetKey()), p.GetValue(), w.GetValue())
	}
}

func (d *differ) metadata(peer, weir map[string]*structpb.Value) {
	all := maps.Clone(weir)
	if all == nil {
		all = map[string]*structpb.Value{}
	}
	maps.Copy(all, peer)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		d.message("dynamic_metadata."+name, peer[name], weir[name])
	}
}

// windows are the lengths of units in seconds.
var windows = map[pb.RateLimitResponse_RateLimit_Unit]int64{
	pb.RateLimitResponse_RateLimit_SECOND: 1,
	pb.RateLimitResponse_RateLimit_MINUTE: 60,
	pb.RateLimitResponse_RateLimit_HOUR:   3600,
	pb.RateLimitResponse_RateLimit_DAY:    24 * 3600,
	pb.RateLimitResponse_RateLimit_WEEK:   7 * 24 * 3600,
	pb.RateLimitResponse_RateLimit_MONTH:  30 * 24 * 3600,
	pb.RateLimitResponse_RateLimit_YEAR:   365 * 24 * 3600,
}
