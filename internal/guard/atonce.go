package guard

import "github.com/weir-ratelimit/weir/pkg/limiter"

// TakeAtOnce is Take for a request whose hits are all cached as denied. If it returns false, out means nothing.
func (d *Denials) TakeAtOnce(hits []limiter.Hit, out []limiter.Decision) bool {
	now, era := d.now(), d.era.Load()
	if era%2 == 1 || !d.answer(now, era, hits, out) {
		return false
	}
	d.answered.Add(1)
	return true
}

// TakeAtOnce is Take for a request whose hits are all covered by permits. If it returns false, nothing is spent, and
// out means nothing.
func (l *Leases) TakeAtOnce(hits []limiter.Hit, out []limiter.Decision) bool {
	if limiter.ByItself(hits) {
		return false
	}
	var room [inline]cover
	covers := room[:0]
	now := l.now()
	for i := range hits {
		h := &hits[i]
		if !leasable(h) || !l.reserve(h, i, &out[i], &covers) {
			for j := range covers {
				l.restore(&covers[j], now)
			}
			return false
		}
	}
	for i := range covers {
		covers[i].commit()
	}
	for i := range hits {
		l.count(&hits[i], i == 0)
	}
	return len(hits) > 0
}

// reserve covers a hit by permits of its key, if there are enough.
func (l *Leases) reserve(h *limiter.Hit, i int, out *limiter.Decision, covers *[]cover) bool {
	sh, _ := l.shard(h.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e := sh.leases[h.Key]
	if e == nil || sh.closed || !e.spend(h, l.now(), out) {
		return false
	}
	e.reserved += h.N
	*covers = append(*covers, cover{lease: e, grant: e.grant, ends: e.ends, n: h.N, hit: i})
	return true
}

// count counts a hit that was covered as one of its key's, and with answered a request that was decided without the
// store. Hits that the store decides are counted by find.
func (l *Leases) count(h *limiter.Hit, answered bool) {
	now := l.now()
	sh, _ := l.shard(h.Key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if e := sh.leases[h.Key]; e != nil {
		e.rate.add(now, leaseTime(h), 1, h.N)
	}
	if answered {
		sh.stats.Answers++
	}
}
