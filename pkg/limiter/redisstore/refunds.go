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

// Times of the connection that receives refunds.
const (
	// pingAfter is the time without a message after which the connection is pinged, and the maximum time for the reply.
	pingAfter = time.Second
	// reconnectPause is the pause before the next attempt to connect.
	reconnectPause = 500 * time.Millisecond
)

// Channel returns the name of the channel of refunds. Scripts publish the keys of refunded counters there, and Reset
// publishes the keys of deleted counters. prefix is a key prefix with FormatVersion.
func Channel(prefix string) string { return prefix + "refunds" }

func (s *Store) channel() string { return Channel(s.prefix) }

// Refunds calls forget for each counter that a process on this Redis refunds or resets: with the counter's key, and
// whether it was a reset. It runs until ctx is done.
//
// It calls hears(true, nil) as soon as it receives every refund, and hears(false, why) when it may miss refunds,
// because the connection is lost or the user may not subscribe. It detects a dead connection within two seconds, or
// within two timeouts of the client if these are longer. Behind a proxy it receives no refunds.
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

// hearRefunds receives refunds on one connection until the connection fails. It first publishes a message on each
// master. When it has received all of these messages, it calls begins, because every later message then arrives.
func (s *Store) hearRefunds(ctx context.Context, forget func(key string, reset bool), begins func()) error {
	sub := s.client.Subscribe(ctx, s.channel())
	defer func() { _ = sub.Close() }()
	defer context.AfterFunc(ctx, func() { _ = survive(sub.Close) })() // a receive does not end with ctx
	if _, err := sub.ReceiveTimeout(ctx, pingAfter); err != nil {
		return fmt.Errorf("subscribe to %s: %w", s.channel(), err)
	}
	self := " " + rand.Text() // no key begins with a space, because each begins with the prefix
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
			continue // the reply to a ping
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

// publish publishes a text on every master, and returns the number of masters.
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

// resetMark precedes the key of a deleted counter in a message on the channel of refunds.
const resetMark = " reset:"

// Reset deletes the counter and, except behind a proxy, publishes that to all processes on this Redis: see Refunds.
// existed reports whether the counter existed. After an error the counter may be deleted or not, so call Reset again.
func (s *Store) Reset(ctx context.Context, key string) (existed bool, err error) {
	name := s.key(key)
	n, err := s.client.Del(ctx, name).Result()
	if err != nil {
		return false, s.unavailable(err)
	}
	if s.o.Proxy {
		return n > 0, nil
	}
	// Publish after the deletion, so that no process reads the old state after the message.
	if err = s.client.Publish(ctx, s.channel(), resetMark+name).Err(); err != nil {
		err = s.unavailable(fmt.Errorf(
			"the counter is reset, but other processes were not notified and keep their cached denials: %w", err))
	}
	return n > 0, err
}

// KeyOf returns the key of the counter that has this key in Redis. ok is false for a key without the store's prefix.
func (s *Store) KeyOf(name string) (key string, ok bool) {
	key, ok = strings.CutPrefix(name, s.prefix)
	if ok && s.cluster != nil {
		key = untagged(key)
	}
	return key, ok
}
