package redisstore

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Times of the connection that hears of refunds.
const (
	// pingAfter is how long it may be silent before it is pinged, and how long the answer may take before it counts as
	// lost.
	pingAfter = time.Second
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
// connection is lost, or the user may not subscribe. It notices within two seconds, or two timeouts of the client if
// these are longer, that a connection carries nothing any more. Behind a proxy it hears nothing.
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
	defer context.AfterFunc(ctx, func() { _ = survive(sub.Close) })() // a receive does not end with ctx
	if _, err := sub.ReceiveTimeout(ctx, pingAfter); err != nil {
		return fmt.Errorf("subscribe to %s: %w", s.channel(), err)
	}
	self := " " + rand.Text() // no key begins with a space: the prefix is before it
	missing, err := s.publish(ctx, self)
	if err != nil {
		return fmt.Errorf("publish to %s: %w", s.channel(), err)
	}
	for isPinged := false; ; {
		message, err := sub.ReceiveTimeout(ctx, pingAfter)
		if TimedOut(err) && !isPinged {
			isPinged = true
			if err = sub.Ping(ctx); err == nil {
				continue
			}
		}
		if err != nil {
			return fmt.Errorf("receive refunds: %w", err)
		}
		isPinged = false
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

// resetMark precedes the key of a counter that was reset, on the channel of refunds.
const resetMark = " reset:"

// Reset deletes the counter and publishes that to all processes on this server: see Refunds. existed reports whether
// there was anything to delete. After an error it is not known whether it was deleted: call it once more. Behind a
// proxy it publishes nothing.
func (s *Store) Reset(ctx context.Context, key string) (existed bool, err error) {
	name := s.key(key)
	n, err := s.client.Del(ctx, name).Result()
	if err != nil {
		return false, s.unavailable(err)
	}
	if s.o.Proxy {
		return n > 0, nil
	}
	// Published after it is done, so that nobody reads the old state once more.
	if err = s.client.Publish(ctx, s.channel(), resetMark+name).Err(); err != nil {
		err = s.unavailable(fmt.Errorf(
			"the counter is reset, but other processes were not notified and keep their cached denials: %w", err))
	}
	return n > 0, err
}

// KeyOf returns the counter's key of a key in this Redis. ok is false for a key that is not
// below the prefix.
func (s *Store) KeyOf(name string) (key string, ok bool) {
	key, ok = strings.CutPrefix(name, s.prefix)
	if ok && s.cluster != nil {
		key = untagged(key)
	}
	return key, ok
}
