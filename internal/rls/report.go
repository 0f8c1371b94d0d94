package rls

import (
	"math"
	"strconv"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// fold finds what the decisions mean for the request and which of its limits each descriptor shows.
func (sc *scratch) fold() {
	sc.over = !limiter.Admitted(sc.hits, sc.out)
	sc.quotaDenies = limiter.QuotaDenies(sc.hits, sc.out)
	for i := range sc.questions {
		q := &sc.questions[i]
		q.tightest = q.first
		for j := q.first + 1; j < q.last; j++ {
			if tighter(&sc.out[j], &sc.out[q.tightest]) {
				q.tightest = j
			}
		}
	}
}

// tighter orders the limits of one descriptor: what does not fit, then what has less remaining, then what takes
// longer.
func tighter(a, b *limiter.Decision) bool {
	if a.Allowed != b.Allowed {
		return !a.Allowed
	}
	if a.Remaining != b.Remaining {
		return a.Remaining < b.Remaining
	}
	if a.RetryAfter != b.RetryAfter {
		return a.RetryAfter > b.RetryAfter
	}
	return a.ResetAfter > b.ResetAfter
}

// denies says whether hit i denied the request.
func (sc *scratch) denies(i int) bool {
	if sc.out[i].Allowed {
		return false
	}
	m := sc.hits[i].Mode
	return m == limiter.Enforce || m == limiter.Quota && sc.quotaDenies
}

// answer is the memory of one descriptor's status, so that all of them are allocated at once.
type answer struct {
	status pb.RateLimitResponse_DescriptorStatus
	limit  pb.RateLimitResponse_RateLimit
	reset  durationpb.Duration
}

// report makes the response of what fold found.
func (sc *scratch) report(o *Options, req *pb.RateLimitRequest, failed bool) *pb.RateLimitResponse {
	res := &pb.RateLimitResponse{
		OverallCode: pb.RateLimitResponse_OK,
		Statuses:    make([]*pb.RateLimitResponse_DescriptorStatus, len(sc.questions)),
	}
	answers := make([]answer, len(sc.questions))
	for i := range answers {
		sc.answer(&answers[i], &sc.questions[i], failed)
		res.Statuses[i] = &answers[i].status
	}
	if sc.over {
		res.OverallCode = pb.RateLimitResponse_OVER_LIMIT
		res.ResponseHeadersToAdd = sc.retryAfter()
	}
	if sc.metadata || o.DynamicMetadata {
		res.DynamicMetadata = sc.dynamicMetadata(req, o.DynamicMetadata)
	}
	if leased := sc.leased(); leased > 0 && !failed {
		if res.DynamicMetadata == nil {
			res.DynamicMetadata = &structpb.Struct{Fields: map[string]*structpb.Value{}}
		}
		res.DynamicMetadata.Fields["leased"] = structpb.NewNumberValue(float64(leased))
	}
	return res
}

func (sc *scratch) answer(a *answer, q *question, failed bool) {
	st := &a.status
	st.Code = pb.RateLimitResponse_OK
	if q.first == q.last {
		if q.rule != nil && q.rule.Unlimited && len(q.limits) == 0 {
			st.LimitRemaining = math.MaxUint32
		}
		return
	}
	l, d := sc.limits[q.tightest], &sc.out[q.tightest]
	wait := d.ResetAfter
	if !d.Allowed && sc.hits[q.tightest].Mode != limiter.Shadow {
		st.Code = pb.RateLimitResponse_OVER_LIMIT
		if d.RetryAfter != limiter.Never {
			wait = d.RetryAfter
		}
	}
	st.CurrentLimit = &a.limit
	fillLimit(&a.limit, l)
	st.LimitRemaining = saturate(d.Remaining)
	if !failed {
		a.reset.Seconds = ceilSeconds(wait)
		st.DurationUntilReset = &a.reset
	}
}

// leased is how many hits the request holds of its first concurrency limit, to be given back when its stream is
// done. Envoy reports the end also of streams that were denied; only a hits_addend that is made of this metadata,
// which a denied request does not have and a client cannot send, gives back what was taken and no more.
func (sc *scratch) leased() int64 {
	if sc.over {
		return 0
	}
	for i := range sc.hits {
		if sc.hits[i].Policy.Algorithm() == limiter.Concurrency && sc.out[i].Allowed {
			return max(0, sc.hits[i].N)
		}
	}
	return 0
}

// wireUnits are the units as a response names them.
var wireUnits = [...]pb.RateLimitResponse_RateLimit_Unit{
	descriptors.UnitUnknown: pb.RateLimitResponse_RateLimit_UNKNOWN,
	descriptors.Second:      pb.RateLimitResponse_RateLimit_SECOND,
	descriptors.Minute:      pb.RateLimitResponse_RateLimit_MINUTE,
	descriptors.Hour:        pb.RateLimitResponse_RateLimit_HOUR,
	descriptors.Day:         pb.RateLimitResponse_RateLimit_DAY,
	descriptors.Week:        pb.RateLimitResponse_RateLimit_WEEK,
	descriptors.Month:       pb.RateLimitResponse_RateLimit_MONTH,
	descriptors.Year:        pb.RateLimitResponse_RateLimit_YEAR,
}

func fillLimit(to *pb.RateLimitResponse_RateLimit, l *descriptors.Limit) {
	to.Name = l.Name
	to.RequestsPerUnit = saturate(l.Policy.Limit())
	to.Unit = wireUnits[l.Unit]
	if l.UnitMultiplier > 1 {
		to.UnitMultiplier = wrapperspb.UInt32(l.UnitMultiplier)
	}
}

// retryAfter is the header that tells the client of a denied request when to come back: after the longest wait
// among what denied it. There is none where no wait helps.
func (sc *scratch) retryAfter() []*corepb.HeaderValue {
	var longest time.Duration
	for i := range sc.hits {
		if sc.denies(i) {
			longest = max(longest, sc.out[i].RetryAfter)
		}
	}
	if longest == limiter.Never {
		return nil
	}
	return []*corepb.HeaderValue{{Key: "Retry-After", Value: strconv.FormatInt(ceilSeconds(longest), 10)}}
}

// ceilSeconds rounds up, since Envoy truncates and a client that comes back too early is denied again.
func ceilSeconds(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 {
		s++
	}
	return s
}

func saturate(n int64) uint32 {
	return uint32(min(max(n, 0), math.MaxUint32))
}
