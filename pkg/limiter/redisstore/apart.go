package redisstore

import (
	"strconv"
	"strings"
	"time"
)

// around is about what Redis's clock shows, in microseconds since the Unix epoch; exactly, if the store was given
// a clock. A script that decides over windows of a calendar is sent those around it: see limiter.Policy.Edges.
func (s *Store) around() int64 {
	if s.now != nil {
		return s.now()
	}
	return s.wall() + s.ahead.Load()
}

func wall() int64 { return time.Now().UnixMicro() }

// learn says whether the script ended, having written nothing, since the windows that it was sent are not those
// around Redis's clock. How far that is ahead is then known, so that the same request may be asked again.
func (s *Store) learn(err error) bool {
	if err == nil || s.now != nil {
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
	s.ahead.Store(now - s.wall())
	return true
}
