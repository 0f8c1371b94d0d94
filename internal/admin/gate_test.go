package admin

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A value that was begun before a call is no answer to it, unless it may be that old. A panic stops no later call.
func TestShared(t *testing.T) {
	s := newShared[int]()
	made := 0
	next := func() int {
		made++
		return made
	}
	begun, release, first, second := make(chan struct{}), make(chan struct{}), make(chan int), make(chan int)
	go func() {
		first <- s.get(0, func() int {
			close(begun)
			<-release
			return next()
		})
	}()
	<-begun
	go func() { second <- s.get(0, next) }()
	close(release)
	if a, b := <-first, <-second; a != 1 || b != 2 {
		t.Errorf("a call got value %d, and one while that was made value %d; want 1 and 2", a, b)
	}
	func() {
		defer func() { _ = recover() }()
		s.get(0, func() int { panic("boom") })
	}()
	if got := s.get(time.Hour, next); got != 2 {
		t.Errorf("a call that takes a value of the last hour got %d, want 2", got)
	}
}

// One answer is made at a time. Who writes has no turn, and who has gone waits for none.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		made, read := make(chan struct{}), make(chan struct{})
		var making, done atomic.Int64
		handler := inTurn(func(w http.ResponseWriter, _ *http.Request) {
			making.Add(1)
			<-made
			_, _ = w.Write(nil)
		})
		ask := func(ctx context.Context, n int) {
			for range n {
				go func() {
					w := &slowReader{httptest.NewRecorder(), read}
					handler(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil))
					done.Add(1)
				}()
				synctest.Wait()
			}
		}
		ask(t.Context(), 9)
		ask(ctx, 1)
		cancel()
		synctest.Wait()
		if making.Load() != 1 || done.Load() != 1 {
			t.Errorf("%d answers are made at a time, %d requests have ended", making.Load(), done.Load())
		}
		close(made)
		synctest.Wait()
		if making.Load() != 9 || done.Load() != 1 {
			t.Errorf("while nobody reads, %d answers are made, %d requests have ended", making.Load(), done.Load())
		}
		close(read)
		synctest.Wait()
		if done.Load() != 10 {
			t.Errorf("%d requests have ended", done.Load())
		}
	})
}

// slowReader is a client who reads when the channel is closed.
type slowReader struct {
	*httptest.ResponseRecorder
	read chan struct{}
}

func (w *slowReader) Write(p []byte) (int, error) {
	<-w.read
	return w.ResponseRecorder.Write(p)
}
