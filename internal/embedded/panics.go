package embedded

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/weir-ratelimit/weir/internal/logging"
	"github.com/weir-ratelimit/weir/internal/panics"
)

// survival keeps panics of Weir from ending Envoy. It is safe for concurrent use.
type survival struct {
	out  io.Writer // for lines without an instance
	line logging.Every

	begin  sync.Once
	remove func() // ends it, for tests

	instances sync.Map // *instance, which counts and logs panics; without a lock, for which whatever panics would wait
}

// start has panics caught, from the first call until the process ends: also what an instance has left behind when it
// was closed must not end Envoy.
func (s *survival) start(out io.Writer) {
	s.begin.Do(func() {
		s.out, s.line.Interval = out, time.Second
		s.remove = panics.Handle(s.panicked)
	})
}

// panicked counts a panic in every instance, since it is not known whose it was, and logs it in one of them, at most
// once a second.
func (s *survival) panicked(name string, value any, stack []byte) {
	log := slog.New(slog.NewTextHandler(s.out, nil))
	for in := range s.instances.Range {
		if in, ok := in.(*instance); ok { // nothing else is there
			in.app.Metrics().Panicked()
			log = in.log.Logger
		}
	}
	if skipped, ok := s.line.Allow(time.Now()); ok {
		log.LogAttrs(context.Background(), slog.LevelError, "panic",
			slog.String("in", name), slog.String("panic", fmt.Sprint(value)), slog.String("stack", string(stack)),
			slog.Uint64("not_logged_before", skipped))
	}
}
