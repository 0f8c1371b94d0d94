package decide

import (
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// part holds those hits of a request that are sent to the store together.
type part struct {
	hits []limiter.Hit
	out  []limiter.Decision
	of   []int // hits[j] is hit of[j] of the request; nil: all hits in order
}

func (p *part) add(h limiter.Hit, i int) {
	p.hits, p.out, p.of = append(p.hits, h), append(p.out, limiter.Decision{}), append(p.of, i)
}

// scatter copies the decisions to the decisions of the whole request.
func (p *part) scatter(all []limiter.Decision) {
	for j, i := range p.of {
		all[i] = p.out[j]
	}
}

// anyHit reports whether `is` returns true for a hit of the request.
func (v *Verdict) anyHit(is func(*limiter.Hit) bool) bool {
	for i := range v.Hits {
		if is(&v.Hits[i]) {
			return true
		}
	}
	return false
}

// refusedWait is the Retry-After of a refused request. It is short because delayed requests end all the time; the real
// wait is unknown, because the store was not queried.
const refusedWait = time.Second

// refuse denies a request that might have to wait, because Options.MaxDelayed requests are delayed already. It sends
// only refunds and ends to the store, because their requests have ended, and charges nothing, not even with ChargeEach.
func (v *Verdict) refuse() {
	v.refused = true
	for i := range v.Hits {
		h := &v.Hits[i]
		v.Decisions[i] = limiter.Decision{Allowed: true, Remaining: h.Policy.Capacity()}
		if canWait(h) {
			v.Decisions[i] = limiter.Decision{RetryAfter: refusedWait}
		}
	}
	v.askSome(func(i int) bool { return v.Hits[i].N < 0 || v.isEnd(i) && !v.isUnsent(i) })
}
