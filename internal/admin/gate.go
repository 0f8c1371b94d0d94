package admin

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/weir-ratelimit/weir/internal/panics"
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

// shared runs f for everybody who asks, one run at a time. With an age of 0, a caller gets the result of a run that
// began after it asked: what had changed by then is in it. Otherwise the run may have begun up to that long before, so
// that f runs at most once in that time.
type shared struct {
	name string // of f, in the log of a panic
	f    func(ctx context.Context) error
	age  time.Duration
	turn chan struct{} // of the run under way

	mu     sync.Mutex
	newest *run // nil: none yet
}

// run is one run of f. began is zero while it waits for its turn, and err is set when done is closed.
type run struct {
	began time.Time // guarded by the mutex of shared
	done  chan struct{}
	err   error
}

func newShared(name string, age time.Duration, f func(ctx context.Context) error) *shared {
	return &shared{name: name, f: f, age: age, turn: make(chan struct{}, 1)}
}

// do returns what f returns, or the error of ctx when that is done first.
func (s *shared) do(ctx context.Context) error {
	s.mu.Lock()
	r := s.newest
	if r == nil || !r.began.IsZero() && time.Since(r.began) >= s.age {
		r = &run{done: make(chan struct{})}
		s.newest = r
		go s.run(context.WithoutCancel(ctx), r)
	}
	s.mu.Unlock()
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *shared) run(ctx context.Context, r *run) {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	defer close(r.done)
	s.mu.Lock()
	r.began = time.Now()
	s.mu.Unlock()
	r.err = errPanicked // unless f returns
	panics.Catch(s.name, func() { r.err = s.f(ctx) })
}

// errPanicked is the result of what panicked.
var errPanicked = errors.New("it panicked; the log has the stack")
