package redisstore

import (
	"strings"

	"github.com/redis/go-redis/v9"
)

// Client is the store's own connections, for what else is kept in the same Redis. It ends with the store.
func (s *Store) Client() redis.UniversalClient { return s.client }

// Prefix starts the keys of this release: the key prefix and the version of the format, "weir:1:".
func (s *Store) Prefix() string { return s.prefix }

// KeyPrefix starts the keys of every release: "weir:".
func (s *Store) KeyPrefix() string { return strings.TrimSuffix(s.prefix, formatVersion) }
