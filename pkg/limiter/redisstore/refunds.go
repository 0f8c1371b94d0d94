package redisstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/internal/panics"
)

// Times of the connection that hears of refunds.
const (
	// maxSilence is how long it may be silent, though it is pinged, before it counts as lost. The client's own bounds may
	// be longer: those are for answers of a server that is far away.
	maxSilence = 2 * time.Second
	// reconnectPause is the pause before another connection is tried.
	reconnectPause = 500 * time.Millisecond
)

// Channel returns the name of the channel where scripts publish the keys of counters that got a refund, and Reset those
// that it deleted. prefix is a key prefix with FormatVersion.
func Channel(prefix string) string { return prefix + "refunds" }

func (s *Store) channel() string { return Channel(s.prefix) }

// Refunds calls forget for each counter that any process on this Redis refunded hits to: with its key, and whether all
// of it was reset. It runs until ctx is done.
//
// It calls hears(true, nil) when no refund from then on is missed, and hears(false, why) when some may be: the
// connection is lost, or the user may not subscribe. It notices within two seconds that a connection carries nothing
// any more. Behind a proxy it hears nothing.
func (s *Store) Refunds(ctx context.Context, forget func(key string, reset bool), hears func(yes bool, why error)) {
	if s.o.Proxy {
		hears(false, nil)
		<-ctx.Done()
		return
	}
	for ctx.Err() == nil {
		err := survive(func() error { return s.hearRefunds(ctx, forget, func() { hears(true, nil) }) })
		if ctx.Err() != nil {
			err = nil
		}
		hears(false, s.unavailable(err))
		select {
		case <-ctx.Done():
		case <-time.After(reconnectPause):
		}
	}
}

// hearRefunds listens on one connection until it fails. It calls begins when it hears its own message, on each master
// of a cluster: then it knows that it may publish, and that all that is published from then on arrives.
func (s *Store) hearRefunds(ctx context.Context, forget func(key string, reset bool), begins func()) error {
	sub := s.client.Subscribe(ctx, s.channel())
	defer func() { _ = sub.Close() }()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	context.AfterFunc(ctx, func() { _ = survive(sub.Close) }) // a receive does not end with ctx
	silence := time.AfterFunc(maxSilence, func() { panics.Catch("silence of Redis", func() { end(errSilent) }) })
	defer silence.Stop()
	if _, err := sub.Receive(ctx); err != nil {
		return fmt.Errorf("subscribe to %s: %w", s.channel(), err)
	}
	self := " " + rand.Text() // no key begins with a space: the prefix is before it
	missing, err := s.publish(ctx, self)
	if err != nil {
		return fmt.Errorf("publish to %s: %w", s.channel(), err)
	}
	panics.Go("pings of who hears of refunds", func() { keepTalking(ctx, sub) })
	for {
		message, err := sub.Receive(ctx)
		if errors.Is(context.Cause(ctx), errSilent) {
			return errSilent
		}
		if err != nil {
			return fmt.Errorf("hear of refunds: %w", err)
		}
		silence.Reset(maxSilence)
		if m, ok := message.(*redis.Message); !ok {
			continue // a pong
		} else if m.Payload == self {
			if missing--; missing == 0 {
				begins()
			}
		} else {
			name, reset := strings.CutPrefix(m.Payload, resetMark)
			if key, ok := s.KeyOf(name); ok {
				forget(key, reset)
			}
		}
	}
}

var errSilent = errors.New("nothing is heard of refunds any more")

// keepTalking pings the server, so that the connection is never silent, until ctx is done. hearRefunds sees what fails.
func keepTalking(ctx context.Context, sub *redis.PubSub) {
	pause := time.NewTicker(maxSilence / 4)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
			_ = sub.Ping(ctx)
		}
	}
}

// publish publishes a text on every master, and returns how many there are.
func (s *Store) publish(ctx context.Context, text string) (masters int64, err error) {
	if s.cluster == nil {
		return 1, s.client.Publish(ctx, s.channel(), text).Err()
	}
	var count atomic.Int64
	err = s.cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		count.Add(1)
		return node.Publish(ctx, s.channel(), text).Err()
	})
	return count.Load(), err
}
