package guard

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

var _ limiter.Store = (*Breaker)(nil)

// ErrNotAsked is wrapped by the errors of a Breaker that is open.
var ErrNotAsked = errors.New("not asked, since it does not answer")

// Of a Breaker.
const (
	// silence is how long nothing may have been answered, though it was asked, before the store is left in peace.
	silence = 50 * time.Millisecond
	// firstPause and longestPause are between probes: each is twice as long as the one before.
	firstPause   = 5 * time.Millisecond
	longestPause = 200 * time.Millisecond
)

// BreakerOptions are a Breaker's parts.
type BreakerOptions struct {
	// Store decides.
	Store limiter.Store
	// Probe asks the store for a sign of life, and returns soon after ctx is done.
	Probe func(ctx context.Context) error
	// Answered says whether an error, of Store or of Probe, is an answer: that of a server which is there, and says no.
	Answered func(err error) bool
	// Timeout bounds a probe. It is that of the store's calls: a server that is too slow for them is not back.
	Timeout time.Duration
}

// Breaker stops asking a store that does not answer: it is open from when nothing has been answered for a while, and
// Take fails at once, without a wait, a goroutine or an allocation. Meanwhile the store is probed, by one call at a
// time, and asked again from the first answer on.
//
// Only silence opens it. A store that answers with errors is asked on: they cost no wait, and may be a request's own.
type Breaker struct {
	o     BreakerOptions
	start time.Time

	silent atomic.Int64          // when the first call failed since the latest answer, time since start; 0: none has
	why    atomic.Pointer[error] // what Take returns while it is open
	opened chan struct{}         // wakes Run
}

// NewBreaker stands before o.Store. Once open, it closes only while Run runs.
func NewBreaker(o BreakerOptions) *Breaker {
	return &Breaker{o: o, start: time.Now(), opened: make(chan struct{}, 1)}
}

// Open says whether the store is not asked.
func (b *Breaker) Open() bool { return b.why.Load() != nil }

// Take implements limiter.Store.
func (b *Breaker) Take(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	if why := b.why.Load(); why != nil {
		return *why
	}
	err := b.o.Store.Take(ctx, hits, out)
	switch {
	case err == nil || b.o.Answered(err):
		if b.silent.Load() != 0 { // else no core writes what the others read
			b.silent.Store(0)
		}
	case errors.Is(ctx.Err(), context.Canceled):
		// the caller did not wait for the answer
	default:
		b.unanswered(err)
	}
	return err
}

// unanswered opens the breaker if that is so for long enough.
func (b *Breaker) unanswered(err error) {
	now := int64(time.Since(b.start)) + 1 // never 0
	if b.silent.CompareAndSwap(0, now) || now-b.silent.Load() < int64(silence) {
		return
	}
	err = fmt.Errorf("%w: the last call: %w", ErrNotAsked, err)
	if b.why.CompareAndSwap(nil, &err) {
		b.opened <- struct{}{} // never full: Run takes it before it closes the breaker
	}
}

// Run probes the store whenever the breaker is open, until ctx is done.
func (b *Breaker) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.opened:
		}
		for pause := firstPause; !b.answers(ctx); pause = min(2*pause, longestPause) {
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
			}
		}
		b.silent.Store(0)
		b.why.Store(nil)
	}
}

func (b *Breaker) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, b.o.Timeout)
	defer cancel()
	err := b.o.Probe(ctx)
	return err == nil || b.o.Answered(err)
}
