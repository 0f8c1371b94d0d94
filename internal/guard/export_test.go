package guard

import "github.com/weir-ratelimit/weir/pkg/limiter"

// Permits are those of a counter on lease in this process. leased says whether it acquires permits in advance.
func (l *Leases) Permits(key string) (permits int64, leased bool) {
	sh, e := l.lock(key)
	defer sh.mu.Unlock()
	if e == nil {
		return 0, false
	}
	return e.permits, true
}

// Cached is what a hit that is enforced would be answered without the store; ok is false if the store would be asked.
func (d *Denials) Cached(h limiter.Hit) (cached limiter.Decision, ok bool) {
	hits, out := [1]limiter.Hit{h}, [1]limiter.Decision{}
	ok = d.believes.Load() && d.known(d.now(), hits[:], out[:])
	return out[0], ok
}
