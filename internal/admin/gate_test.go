package admin

import (
	"context"
	"errors"
	"testing"
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
