package admin

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/internal/panics"
)

// What panics for all who wait is an error for them, and does not stop those who come later.
func TestGatesOutlivePanics(t *testing.T) {
	caught := 0
	defer panics.Handle(func(string, any, []byte) { caught++ })()
	explodes := true
	f := func(context.Context) error {
		if explodes {
			panic("boom")
		}
		return nil
	}
	s := newShared("admin request", 0, f)
	if err := s.do(t.Context()); !errors.Is(err, errPanicked) {
		t.Errorf("a reload that panics: %v", err)
	}
	if err := newShared("readiness check", time.Second, f).do(t.Context()); !errors.Is(err, errPanicked) {
		t.Errorf("a check that panics: %v", err)
	}
	explodes = false
	if err := s.do(t.Context()); err != nil || caught != 2 {
		t.Errorf("afterwards: %v, %d panics caught, want 2", err, caught)
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
