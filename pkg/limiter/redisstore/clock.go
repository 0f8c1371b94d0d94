package redisstore

import (
	"strconv"
	"strings"
	"time"
)

// redisNow is about what Redis's clock shows, in microseconds since the Unix epoch; exactly, if the store was given a
// clock. Scripts that decide over windows of a calendar are sent the windows around it: see step.Dated.
func (r *batcher) redisNow() int64 {
	if r.now != nil {
		return r.now()
	}
	return r.wall() + r.ahead.Load()
}

func wall() int64 { return time.Now().UnixMicro() }

// takeRefused takes from a decided batch the calls that the script refused, having written nothing for them, because
// their windows are not those around Redis's clock. How far that is ahead is known now, so they can be sent once more.
// Nil: there are none.
func (r *batcher) takeRefused(b *batch) *batch {
	var refused *batch
	for _, c := range b.calls {
		if r.learnClock(c.err) {
			c.forget()
			if refused == nil {
				refused = new(batch)
			}
			refused.add(c)
		}
	}
	return refused
}

// learnClock reports whether err is such a refusal, and notes how far Redis's clock is ahead.
func (r *batcher) learnClock(err error) bool {
	if err == nil || r.now != nil {
		return false
	}
	_, answer, ok := strings.Cut(err.Error(), "WEIR APART ")
	if !ok {
		return false
	}
	digits, _, _ := strings.Cut(answer, " ")
	now, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return false
	}
	r.ahead.Store(now - r.wall())
	return true
}
