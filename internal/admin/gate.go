package admin

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/weir-ratelimit/weir/pkg/panics"
)

const (
	// maxWaiting is how many wait for an answer that is given to one at a time, maxWait how long.
	maxWaiting = 8
	maxWait    = 5 * time.Second
)

// errBusy is the answer to those beyond.
var errBusy = &statusError{
	http.StatusServiceUnavailable, "others ask the same; this is answered to one at a time: try again in a few seconds",
}

// oneAtATime lets one request in at a time, since its answer takes a CPU or a connection for a while.
func oneAtATime(next http.HandlerFunc) http.HandlerFunc {
	g := gate{turn: make(chan struct{}, 1), waiting: make(chan struct{}, maxWaiting)}
	return func(w http.ResponseWriter, r *http.Request) {
		if !g.enter(r.Context()) {
			w.Header().Set("Retry-After", "5")
			writeError(w, errBusy)
			return
		}
		defer func() { <-g.turn }()
		next(w, r)
	}
}

type gate struct{ turn, waiting chan struct{} }

func (g *gate) enter(ctx context.Context) bool {
	select {
	case g.turn <- struct{}{}:
		return true
	default:
	}
	select {
	case g.waiting <- struct{}{}:
		defer func() { <-g.waiting }()
	default:
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	select {
	case g.turn <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// shared runs f for all who ask before it begins. One run follows another, so that who asks while one is under way,
// which may have read what has changed since, has the next one.
type shared struct {
	f    func(ctx context.Context) error
	turn chan struct{} // of the run

	mu   sync.Mutex
	next *run
}

// run is one that has not begun. err is set when done is closed.
type run struct {
	done chan struct{}
	err  error
}

// do returns what f does, or that ctx is done.
func (s *shared) do(ctx context.Context) error {
	s.mu.Lock()
	r := s.next
	if r == nil {
		r = &run{done: make(chan struct{})}
		s.next = r
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
	s.next = nil
	s.mu.Unlock()
	r.err = errPanicked // unless f returns
	panics.Catch("admin request", func() { r.err = s.f(ctx) })
}

// errPanicked is the result of what panicked.
var errPanicked = errors.New("it panicked; the log has the stack")

// checkFresh is how long the answer of a check that asks a server is used again.
const checkFresh = time.Second

// fresh asks f at most once in checkFresh, however many want to know, and one at a time.
type fresh struct {
	f       func(ctx context.Context) error
	timeout time.Duration

	mu   sync.Mutex
	last *answer // the one that is under way, or was given last
}

// answer is one of f. err is set when done is closed.
type answer struct {
	began time.Time
	done  chan struct{}
	err   error
}

// get is the answer; after a hung question has been under way for longer than it is fresh, that it has not come.
func (c *fresh) get(ctx context.Context) error {
	c.mu.Lock()
	a := c.last
	if a == nil || isDone(a.done) && time.Since(a.began) >= checkFresh {
		a = &answer{began: time.Now(), done: make(chan struct{})}
		c.last = a
		go func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.timeout)
			defer cancel()
			defer close(a.done)
			a.err = errPanicked // unless f returns
			panics.Catch("readiness check", func() { a.err = c.f(ctx) })
		}()
	}
	c.mu.Unlock()
	select {
	case <-a.done:
		return a.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func isDone(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}
