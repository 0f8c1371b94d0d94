package rules

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/weir-ratelimit/weir/pkg/reload"
)

var _ reload.Source = (*Follower)(nil)

// look bounds the question which version is in force, the only one that is asked while nothing changes: whoever reloads
// waits for it.
const look = 2 * time.Second

// awayRetry is the interval of hints while Redis cannot be reached.
const awayRetry = 500 * time.Millisecond

// Follower is the set in force as a source of rule files.
type Follower struct {
	sets   *Published
	onAway func(error)

	mu   sync.Mutex
	last *PublishedSet // that was read; nil before the first
	away error         // why Redis could not be asked at the last look
}

// Follow makes the source. onAway hears, once each time that changes, why Redis cannot be asked although a set was read
// before, and nil when it can again.
func (s *Published) Follow(onAway func(error)) *Follower { return &Follower{sets: s, onAway: onAway} }

// Last is the set that was read last, in force or refused; a PublishedInfo of version 0 if there is none. away is why
// Redis could not be asked at the last look.
func (f *Follower) Last() (info PublishedInfo, away error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.last != nil {
		info = f.last.PublishedInfo
	}
	return info, f.away
}

// Read implements reload.Source. While Redis cannot be asked it gives the set that was read last: files beside it can
// be reloaded all the same. That nothing is published any more is an error: Redis has lost it.
func (f *Follower) Read(ctx context.Context) (reload.Snapshot, error) {
	f.mu.Lock()
	last := f.last
	f.mu.Unlock()

	set, away, err := f.read(ctx, last)
	if ctx.Err() != nil {
		return reload.Snapshot{}, ctx.Err()
	}
	f.mu.Lock()
	changed := last != nil && (away == nil) != (f.away == nil)
	f.away = away
	if set != nil {
		f.last = set
	}
	f.mu.Unlock()
	if changed {
		f.onAway(away)
	}
	if err != nil {
		return reload.Snapshot{}, err
	}
	return reload.NewSnapshot(set.Named()), nil
}

// read is the set in force, or last while Redis is away. An error is the verdict on what Redis holds, or, without last,
// why it is away.
func (f *Follower) read(ctx context.Context, last *PublishedSet) (set *PublishedSet, away, err error) {
	short, cancel := context.WithTimeout(ctx, look)
	defer cancel()
	mark, err := f.sets.current(short)
	if err == nil && last != nil && mark == last.mark() {
		return last, nil, nil
	}
	if err == nil {
		set, err = f.sets.Current(ctx)
	}
	switch {
	case err == nil || !errors.As(err, new(callError)):
		return set, nil, err
	case last != nil:
		return last, err, nil // the folders beside it go on
	default:
		return nil, err, fmt.Errorf("--rules store: %w", err)
	}
}

// Watch implements reload.Source: there is a hint after each publication, after a connection was made, which may have
// missed one, and at intervals while Redis is away.
func (f *Follower) Watch(ctx context.Context, changed chan<- struct{}) error {
	subscription := f.sets.redis.Client.Subscribe(ctx, f.sets.key)
	heard := subscription.ChannelWithSubscriptions()
	defer func() {
		_ = subscription.Close() // nothing was written
		for range heard {        // until go-redis no longer reads from the connection
		}
	}()
	tick := time.NewTicker(awayRetry)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-heard:
			reload.Hint(changed)
		case <-tick.C:
			if _, away := f.Last(); away != nil {
				reload.Hint(changed)
			}
		}
	}
}
