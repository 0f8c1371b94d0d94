package embedded

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/weir-ratelimit/weir/internal/logging"
	"github.com/weir-ratelimit/weir/internal/panics"
)

// panicLines is how often a panic is logged at most.
const panicLines = time.Second

// survival keeps panics of Weir's goroutines from ending Envoy. It is safe for concurrent use.
type survival struct {
	out  io.Writer // for lines without an instance
	line logging.Every

	begin  sync.Once
	remove func() // ends it, for tests

	instances sync.Map // *instance, which counts and logs panics; without a lock, for which whatever panics would wait
}

// start has panics in the background caught, from the first call until the process ends: also what an instance has
// left behind when it was closed must not end Envoy.
func (s *survival) start(out io.Writer) {
	s.begin.Do(func() {
		s.out, s.line.Interval = out, panicLines
		s.remove = panics.Handle(s.panicked)
	})
}

// panicked counts a panic in the background in every instance, since it is not known whose goroutine it was, and logs
// it in one of them, but not more often than panicLines.
func (s *survival) panicked(name string, value any, stack []byte) {
	log := slog.New(slog.NewTextHandler(s.out, nil))
	for in := range s.instances.Range {
		if in, ok := in.(*instance); ok { // nothing else is there
			in.app.Metrics().Panicked()
			log = in.log.Logger
		}
	}
	if skipped, ok := s.line.Allow(time.Now()); ok {
		logPanic(log, name, value, stack, skipped)
	}
}

func logPanic(log *slog.Logger, name string, value any, stack []byte, skipped uint64) {
	log.LogAttrs(context.Background(), slog.LevelError, "panic",
		slog.String("in", name), slog.String("panic", fmt.Sprint(value)), slog.String("stack", string(stack)),
		slog.Uint64("not_logged_before", skipped))
}

// guard runs f on behalf of a request. A panic is counted in this instance, and logged, but not more often than
// panicLines.
func (in *instance) guard(name string, f func()) (panicked bool) {
	defer func() {
		why := recover()
		if panicked = why != nil; !panicked {
			return
		}
		in.app.Metrics().Panicked()
		if skipped, ok := in.panics.Allow(time.Now()); ok {
			logPanic(in.log.Logger, name, why, debug.Stack(), skipped)
		}
	}()
	f()
	return false
}
