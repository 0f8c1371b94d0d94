package admin

import (
	"net/http"
	"time"
)

// inTurn runs one request at a time, because each may use a CPU for a while. While a client reads the response, the
// next request may run.
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

// inTurns releases the turn during a Write.
type inTurns struct {
	http.ResponseWriter
	turn chan struct{}
}

// Unwrap serves http.ResponseController.
func (w *inTurns) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *inTurns) Write(p []byte) (int, error) {
	<-w.turn
	defer func() { w.turn <- struct{}{} }()
	return w.ResponseWriter.Write(p)
}

// shared computes one value at a time and shares it among callers.
type shared[T any] struct {
	turn  chan struct{}
	began time.Time // when computing value began
	value T
}

func newShared[T any]() *shared[T] { return &shared[T]{turn: make(chan struct{}, 1)} }

// get returns the result of an f that began at most age before the call, or after it. So f runs at most once in age.
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
