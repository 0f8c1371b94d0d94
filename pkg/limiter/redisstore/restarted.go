package redisstore

import (
	"sync/atomic"
	"time"
)

// restartedQuiet is the least time between two calls of Options.OnRestart: somebody who writes nonsense below our prefix
// writes no more log than that.
const restartedQuiet = time.Minute

// restarts counts the counters that the script started again, since it found a state that Weir cannot have left there.
// It is safe for concurrent use.
type restarts struct {
	all      atomic.Uint64
	reported atomic.Uint64 // of all
	last     atomic.Int64  // when that was, in nanoseconds since the Unix epoch
	report   func(counters uint64, key string)
}

// note counts the keys that a script call answered, and reports them if nothing was reported for a while.
func (r *restarts) note(keys []any, now time.Time) {
	if len(keys) == 0 {
		return
	}
	all := r.all.Add(uint64(len(keys)))
	last := r.last.Load()
	if r.report == nil || now.UnixNano()-last < int64(restartedQuiet) || !r.last.CompareAndSwap(last, now.UnixNano()) {
		return
	}
	key, _ := keys[0].(string)
	r.report(all-r.reported.Swap(all), cut(key))
}
