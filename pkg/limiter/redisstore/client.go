package redisstore

import (
	"context"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Client is the store's own connections, for what else is kept in the same Redis. It ends with the store.
func (s *Store) Client() redis.UniversalClient { return s.client }

// Prefix starts the keys of this release: the key prefix and the version of the format, "weir:1:".
func (s *Store) Prefix() string { return s.prefix }

// KeyPrefix starts the keys of every release: "weir:".
func (s *Store) KeyPrefix() string { return strings.TrimSuffix(s.prefix, formatVersion) }

// Hints says that something was told on the channel, or that a connection was made anew, which may have missed it. It
// returns when ctx is done, or with the store.
func (s *Store) Hints(ctx context.Context, channel string, changed chan<- struct{}) {
	sub := s.client.Subscribe(ctx, channel)
	defer sub.Close() //nolint:errcheck // nothing was written
	messages := sub.ChannelWithSubscriptions()
	for {
		select {
		case <-ctx.Done():
			return
		case _, open := <-messages:
			if !open {
				return
			}
		}
		select {
		case changed <- struct{}{}:
		default:
		}
	}
}
