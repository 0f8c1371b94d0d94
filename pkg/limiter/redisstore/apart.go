package redisstore

import (
	"strconv"
	"strings"
	"time"
)

// around is about what Redis's clock shows, in microseconds since the Unix epoch; exactly, if the store was given
// a clock. A script that decides over windows of a calendar is sent those around it: see limiter.Policy.Edges.
func (r *batcher) around() int64 {
	if r.now != nil {
		return r.now()
	}
	return r.wall() + r.ahead.Load()
}

func wall() int64 { return time.Now().UnixMicro() }

// apart takes from a decided batch the calls that the script refused, having written nothing for them, since the
// windows that they brought are not those around Redis's clock. How far that is ahead is known now, so that they
// may be asked again. Nil: there are none.
func (r *batcher) apart(b *batch) *batch {
	var again batch
	for _, c := range b.calls {
		if r.learn(c.err) {
			c.forget()
			again.add(c)
		}
	}
	if len(again.calls) == 0 {
		return nil
	}
	return &again
}

// learn says whether err is that, and notes how far Redis's clock is ahead.
func (r *batcher) learn(err error) bool {
	if err == nil || r.now != nil {
		return false
	}
	_, told, ok := strings.Cut(err.Error(), "WEIR APART ")
	if !ok {
		return false
	}
	digits, _, _ := strings.Cut(told, " ")
	now, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return false
	}
	r.ahead.Store(now - r.wall())
	return true
}
