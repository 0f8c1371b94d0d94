package admin

import (
	"net/http"
	"time"
)

// inTurn makes one answer at a time, since it takes a CPU for a while. While a client reads what was made, the turn is
// another's.
func inTurn(next http.HandlerFunc) http.HandlerFunc {
	turn := make(chan struct{}, 1)
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case turn <- struct{}{}:
			defer func() { <-turn }()
			next(&inTurns{w, turn}, r)
		case <-r.Context().Done():
		}
	}
}

// inTurns ends the turn for the time of a Write.
type inTurns struct {
	http.ResponseWriter
	turn chan struct{}
}

// Unwrap is for http.ResponseController.
func (w *inTurns) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *inTurns) Write(p []byte) (int, error) {
	<-w.turn
	defer func() { w.turn <- struct{}{} }()
	return w.ResponseWriter.Write(p)
}

// shared makes one value at a time for all who want it.
type shared[T any] struct {
	turn  chan struct{}
	began time.Time // the making of value
	value T
}

func newShared[T any]() *shared[T] { return &shared[T]{turn: make(chan struct{}, 1)} }

// get returns what f returns. f has begun after the call, or at most so long before it, which bounds how often f runs.
func (s *shared[T]) get(age time.Duration, f func() T) T {
	asked := time.Now()
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	if began := time.Now(); s.began.Before(asked.Add(-age)) {
		s.value = f()
		s.began = began
	}
	return s.value
}
