package store

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
)

var _ limiter.Store = (*local)(nil)

// local is a memory store that is there while it is needed: it counts shares of limits while Redis does not.
type local struct {
	maxKeys int

	mu    sync.Mutex // of those who make or drop it
	store atomic.Pointer[memstore.Store]
}

// Take implements limiter.Store.
func (l *local) Take(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	s := l.store.Load()
	if s == nil {
		var err error
		if s, err = l.open(); err != nil { //nolint:contextcheck // the store outlives ctx
			return fmt.Errorf("%w: %w", limiter.ErrUnavailable, err)
		}
	}
	return s.Take(ctx, hits, out)
}

func (l *local) open() (*memstore.Store, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.store.Load(); s != nil {
		return s, nil
	}
	s, err := memstore.New(memstore.Options{MaxKeys: l.maxKeys})
	if err == nil {
		l.store.Store(s)
	}
	return s, err
}

// drop forgets all that was counted.
func (l *local) drop() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.store.Swap(nil); s != nil {
		return s.Close()
	}
	return nil
}
