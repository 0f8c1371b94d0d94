package admin

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
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

// Those who come while the turn is taken and enough others wait have to come again. Who writes has no turn.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made, read := make(chan struct{}), make(chan struct{})
		handler := oneAtATime(func(w http.ResponseWriter, _ *http.Request) {
			<-made
			_, _ = w.Write(nil)
		})
		status := make(chan int, 20)
		for range 10 {
			go func() {
				w := &slowReader{httptest.NewRecorder(), read}
				handler(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
				status <- w.Code
			}()
		}
		synctest.Wait()
		if code := <-status; code != http.StatusServiceUnavailable || len(status) != 0 {
			t.Errorf("beside a turn and 8 who wait: %d, and %d others", code, len(status))
		}
		close(made)
		synctest.Wait() // nobody reads, and all 9 have had their turn
		close(read)
		for range 9 {
			if code := <-status; code != http.StatusOK {
				t.Errorf("who has waited: %d", code)
			}
		}
	})
}

// slowReader is a client who reads an empty text when the channel is closed.
type slowReader struct {
	*httptest.ResponseRecorder
	read chan struct{}
}

func (w *slowReader) Write(p []byte) (int, error) {
	if len(p) == 0 {
		<-w.read
	}
	return w.ResponseRecorder.Write(p)
}
