package decide

import (
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// part is hits of a request that are asked together.
type part struct {
	hits []limiter.Hit
	out  []limiter.Decision
	of   []int // hits[j] is the request's hit of[j]; nil: they are all
}

// add adds a hit, which is the request's hit i.
func (p *part) add(h limiter.Hit, i int) {
	p.hits, p.out, p.of = append(p.hits, h), append(p.out, limiter.Decision{}), append(p.of, i)
}

// scatter copies the answers to those of the whole request.
func (p *part) scatter(all []limiter.Decision) {
	for j, i := range p.of {
		all[i] = p.out[j]
	}
}

// anyHit reports whether one of the request's hits is so.
func (v *Verdict) anyHit(is func(*limiter.Hit) bool) bool {
	for i := range v.Hits {
		if is(&v.Hits[i]) {
			return true
		}
	}
	return false
}

// refusedWait is the wait that a refused request announces: delayed requests go on all the time, and the limits of the
// refused one have not been asked.
const refusedWait = time.Second

// refuse denies a request that might have to wait, because Options.MaxDelayed requests are delayed already. Only what
// the request refunds is asked: that has ended, whatever becomes of the rest. The other hits are charged nothing,
// also those that are charged by themselves.
func (v *Verdict) refuse() {
	v.refused, v.asked = true, part{}
	for i := range v.Hits {
		h := &v.Hits[i]
		v.Decisions[i] = limiter.Decision{Allowed: true, Remaining: h.Policy.Capacity()}
		switch {
		case h.N < 0:
			v.asked.add(*h, i)
		case canWait(h):
			v.Decisions[i] = limiter.Decision{RetryAfter: refusedWait}
		}
	}
}
