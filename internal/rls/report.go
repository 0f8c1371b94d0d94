package rls

import (
	"math"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

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

// report encodes the response of what fold found.
func (sc *scratch) report(failed bool) (*reply, error) {
	res := appendNumber(sc.response[:0], 1, code(sc.over))
	for i := range sc.questions {
		res = appendStatus(res, sc.show(&sc.questions[i], failed))
	}
	if sc.o.LimitHeaders != (LimitHeaders{}) && !failed {
		res = sc.appendLimitHeaders(res)
	}
	if sc.over {
		if longest := sc.retryAfter(); longest != limiter.Never {
			res = appendNumberHeader(res, "Retry-After", ceilSeconds(longest))
		}
		if told := sc.told(); told != nil {
			for _, h := range told.Headers {
				res = appendHeader(res, h.Name, h.Value)
			}
			res = appendText(res, 5, told.Body)
		}
	}
	var err error
	if m := sc.allMetadata(failed); m != nil {
		if res, err = appendMetadata(res, m); err != nil {
			return nil, err
		}
	}
	sc.response = res
	return newReply(res), nil
}

// told is what the first of the rules that deny the request and have a response tells it, nil if none has.
func (sc *scratch) told() *descriptors.Response {
	for i := range sc.questions {
		q := &sc.questions[i]
		if q.rule == nil || q.rule.Response == nil {
			continue
		}
		for j := q.first; j < q.last; j++ {
			if sc.denies(j) {
				return q.rule.Response
			}
		}
	}
	return nil
}

// appendLimitHeaders tells the client the limit that is nearest, as envoyproxy/ratelimit chooses it: the last status
// that is over its limit, else the first that has the least remaining. Nothing if no status has a limit.
func (sc *scratch) appendLimitHeaders(res []byte) []byte {
	var nearest shown
	for i := range sc.questions {
		st := sc.show(&sc.questions[i], false)
		if st.limit == nil {
			continue
		}
		if nearest.limit == nil || st.over || !nearest.over && st.remaining < nearest.remaining {
			nearest = st
		}
	}
	if nearest.limit == nil {
		return res
	}
	names := &sc.o.LimitHeaders
	res = appendNumberHeader(res, names.Limit, int64(saturate(nearest.limit.Policy.Limit())))
	res = appendNumberHeader(res, names.Remaining, int64(nearest.remaining))
	return appendNumberHeader(res, names.Reset, nearest.reset)
}

// shown is what the status of one descriptor shows.
type shown struct {
	over      bool
	limit     *descriptors.Limit // nil if none
	remaining uint32
	reset     int64 // seconds
	timeless  bool  // reset is not known
}

func (sc *scratch) show(q *question, failed bool) shown {
	if q.first == q.last {
		if q.rule != nil && q.rule.Unlimited && len(q.limits) == 0 {
			return shown{remaining: math.MaxUint32, timeless: true}
		}
		return shown{timeless: true}
	}
	d := &sc.out[q.tightest]
	over, wait := false, d.ResetAfter
	if !d.Allowed && sc.hits[q.tightest].Mode != limiter.Shadow {
		over = true
		if d.RetryAfter != limiter.Never {
			wait = d.RetryAfter
		}
	}
	return shown{over, sc.limits[q.tightest], saturate(d.Remaining), ceilSeconds(wait), !sc.known(q.tightest, failed)}
}

// allMetadata is the response's dynamic_metadata, nil if none.
func (sc *scratch) allMetadata(failed bool) (m *structpb.Struct) {
	if sc.metadata || sc.o.DynamicMetadata {
		m = sc.dynamicMetadata()
	}
	if leased := sc.leased(failed); leased > 0 {
		if m == nil {
			m = &structpb.Struct{Fields: map[string]*structpb.Value{}}
		}
		m.Fields["leased"] = structpb.NewNumberValue(float64(leased))
	}
	return m
}

// leased is how many hits the request holds of its first concurrency limit, to be given back when its stream is
// done. Envoy reports the end also of streams that were denied; only a hits_addend that is made of this metadata,
// which a denied request does not have and a client cannot send, gives back what was taken and no more.
func (sc *scratch) leased(failed bool) int64 {
	if sc.over {
		return 0
	}
	for i := range sc.hits {
		if sc.hits[i].Policy.Algorithm() == limiter.Concurrency && sc.out[i].Allowed && sc.known(i, failed) {
			return max(0, sc.hits[i].N)
		}
	}
	return 0
}

// retryAfter is the Retry-After that tells the client of a denied request when to come back: after the longest wait
// among what denied it. It is limiter.Never, for none, where no wait helps.
func (sc *scratch) retryAfter() (longest time.Duration) {
	for i := range sc.hits {
		if sc.denies(i) {
			longest = max(longest, sc.out[i].RetryAfter)
		}
	}
	return longest
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
