package redisstore

import (
	"context"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// resetMark is before the key of a counter that is new, on the channel of refunds, where the key without it has been said
// too: a release that does not know the mark takes it for a refund to a counter that nobody has.
const resetMark = " reset:"

// Reset forgets the counter, and tells all processes on this server, who hear it as Refunds has it. existed says whether
// there was anything to forget. After an error it is not known whether it was forgotten: ask again.
func (s *Store) Reset(ctx context.Context, key string) (existed bool, err error) {
	name := s.key(key)
	n, err := s.client.Del(ctx, name).Result()
	if err != nil {
		return false, s.unavailable(err)
	}
	// Told after it is done, so that nobody learns the old state again.
	_, err = s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.Publish(ctx, s.channel(), name)
		p.Publish(ctx, s.channel(), resetMark+name)
		return nil
	})
	if err != nil {
		err = s.unavailable(fmt.Errorf("the counter is forgotten, but other sidecars were not told: they go on with the denials that they know: %w", err))
	}
	return n > 0, err
}

// Reset is that of every store: a counter may have stayed in one that its limit named before.
func (g *Group) Reset(ctx context.Context, key string) (existed bool, err error) {
	err = g.each(func(s *Store) error {
		there, err := s.Reset(ctx, key)
		existed = existed || there
		return err
	})
	return existed, err
}

// KeyOf is the counter's key of a key in this Redis, as `weir keys` shows it. ok is false for one that is not below the
// prefix.
func (s *Store) KeyOf(name string) (key string, ok bool) {
	key, ok = strings.CutPrefix(name, s.prefix)
	if ok && s.cluster != nil {
		key = untagged(key)
	}
	return key, ok
}

// KeyOf is that of the first store.
func (g *Group) KeyOf(name string) (key string, ok bool) { return g.first.KeyOf(name) }
