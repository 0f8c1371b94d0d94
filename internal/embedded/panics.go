package embedded

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/weir-ratelimit/weir/internal/logging"
	"github.com/weir-ratelimit/weir/pkg/panics"
)

// panicLines is how often a panic is logged at most.
const panicLines = time.Second

// survival keeps panics of Weir's goroutines from ending Envoy. It is safe for concurrent use.
type survival struct {
	out  io.Writer // for lines without an instance
	line logging.Every

	begin  sync.Once
	remove func() // ends it, for tests

	mu        sync.Mutex // is held for a moment only: whatever panics waits for it
	instances []*instance
}

// start has panics in the background caught, from the first call until the process ends: also what an instance has
// left behind when it was closed must not end Envoy.
func (s *survival) start(out io.Writer) {
	s.begin.Do(func() {
		s.out, s.line.Interval = out, panicLines
		s.remove = panics.Handle(s.panicked)
	})
}

// add has an instance count and log panics.
func (s *survival) add(in *instance) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.instances = append(s.instances, in)
}

func (s *survival) drop(in *instance) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.instances = slices.DeleteFunc(s.instances, func(other *instance) bool { return other == in })
}

// panicked counts a panic in the background in every instance, since it is not known whose goroutine it was, and logs
// it in one of them, but not more often than panicLines.
func (s *survival) panicked(name string, value any, stack []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	log := slog.New(slog.NewTextHandler(s.out, nil))
	for _, in := range s.instances {
		in.app.Metrics().Panicked()
		log = in.log.Logger
	}
	if skipped, ok := s.line.Allow(time.Now()); ok {
		logPanic(log, name, value, stack, skipped)
	}
}

func logPanic(log *slog.Logger, name string, value any, stack []byte, skipped uint64) {
	log.LogAttrs(context.Background(), slog.LevelError, "panic", slog.String("in", name), slog.String("panic", fmt.Sprint(value)),
		slog.String("stack", string(stack)), slog.Uint64("not_logged_before", skipped))
}

// panicked counts a panic of this instance and logs it, but not more often than panicLines.
func (in *instance) panicked(what string, why any) {
	in.app.Metrics().Panicked()
	if skipped, ok := in.panics.Allow(time.Now()); ok {
		logPanic(in.log.Logger, what, why, debug.Stack(), skipped)
	}
}
