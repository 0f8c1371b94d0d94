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

// survival prevents panics of Weir from ending Envoy. It is safe for concurrent use.
type survival struct {
	out  io.Writer // receives log lines while there is no instance
	line logging.Every

	begin  sync.Once
	remove func() // uninstalls the handler, for tests

	instances sync.Map // which count and log panics; lock-free, because a panicking goroutine may hold locks
}

// start makes Weir catch panics from the first call until the process ends, because goroutines of a closed instance
// must not end Envoy either.
func (s *survival) start(out io.Writer) {
	s.begin.Do(func() {
		s.out, s.line.Interval = out, time.Second
		s.remove = panics.Handle(s.panicked)
	})
}

// panicked counts a panic in every instance, because its origin is unknown. It logs at most one panic per second.
func (s *survival) panicked(name string, value any, stack []byte) {
	log := slog.New(slog.NewTextHandler(s.out, nil))
	for in := range s.instances.Range {
		if in, ok := in.(*instance); ok { // the map has no other values
			in.app.Metrics().Panicked()
			log = in.log.Logger
		}
	}
	s.line.Log(context.Background(), log, slog.LevelError, "panic",
		slog.String("in", name), slog.String("panic", fmt.Sprint(value)), slog.String("stack", string(stack)))
}
