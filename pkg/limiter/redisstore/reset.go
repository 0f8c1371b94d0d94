package redisstore

import (
	"context"
	"fmt"
	"strings"
)

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
			"the counter is reset, but other processes do not know: they go on with their cached denials: %w", err))
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
