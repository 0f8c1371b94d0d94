package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// keysPage is about how many keys the server looks at in one step: well below a millisecond.
const keysPage = 500

// Key is one of Weir's keys.
type Key struct {
	Name   string
	Format string // the version of the format, "1"
	Rest   string // what follows it: a counter's key, or another name
	Type   string // Redis's word; empty if not asked for
	TTL    time.Duration
	Bytes  int64 // of MEMORY USAGE, with those of the name; 0 if the user may not run it
}

// NoTTL is the TTL of a key that has none.
const NoTTL = time.Duration(-1)

// Published reports whether the key holds published rules, which are no counter and have no time to live.
func (k *Key) Published() bool { return k.Rest == "rules" }

// Boosts reports whether the key holds the boosts, which are no counter either: weir boost remove ends them.
func (k *Key) Boosts() bool { return k.Rest == "boosts" }

// Keys lists and deletes Weir's keys in a Redis, page by page: a server with millions of them goes on answering.
type Keys struct{ *Redis }

// OpenKeys does not connect. An error says what is wrong with the URL.
func OpenKeys(url, keyPrefix string) (*Keys, error) {
	r, err := ConnectForCommand(url, keyPrefix)
	return &Keys{r}, err
}

// Walk visits the keys of a format ("*" for all) whose rest matches a glob pattern of Redis, one page after the other,
// on every master of a cluster. A key that comes or goes meanwhile may be missing, and one may be visited twice. With
// details, it reads types, times to live and sizes. visit is called by one goroutine at a time.
func (k *Keys) Walk(ctx context.Context, format, match string, details bool,
	visit func(context.Context, []Key) error,
) error {
	pattern := escaped(k.KeyPrefix()) + format + ":" + match
	var one sync.Mutex
	scan := func(ctx context.Context, node *redis.Client) error {
		return k.scan(ctx, node, pattern, details, func(ctx context.Context, keys []Key) error {
			one.Lock()
			defer one.Unlock()
			return visit(ctx, keys)
		})
	}
	var err error
	switch client := k.Client.(type) {
	case *redis.ClusterClient:
		err = client.ForEachMaster(ctx, scan)
	case *redis.Client:
		err = scan(ctx, client)
	default:
		err = fmt.Errorf("cannot walk through a %T", client)
	}
	if err != nil {
		return fmt.Errorf("keys of %s: %w", k.Redis, err)
	}
	return nil
}

func (k *Keys) scan(
	ctx context.Context, node *redis.Client, pattern string, details bool, visit func(context.Context, []Key) error,
) error {
	for cursor, first := uint64(0), true; first || cursor != 0; first = false {
		names, next, err := node.Scan(ctx, cursor, pattern, keysPage).Result()
		if err != nil {
			return err
		}
		cursor = next
		keys := make([]Key, 0, len(names))
		for _, name := range names {
			format, rest, ok := strings.Cut(strings.TrimPrefix(name, k.KeyPrefix()), ":")
			if ok && isNumber(format) { // else another program's, with the same beginning
				keys = append(keys, Key{Name: name, Format: format, Rest: rest})
			}
		}
		if len(keys) == 0 {
			continue
		}
		if details {
			if keys, err = describe(ctx, node, keys); err != nil {
				return err
			}
		}
		if err := visit(ctx, keys); err != nil {
			return err
		}
	}
	return nil
}

// describe reads types, times to live and sizes of the keys, and drops those that are gone.
func describe(ctx context.Context, node *redis.Client, keys []Key) ([]Key, error) {
	types, ttls := make([]*redis.StatusCmd, len(keys)), make([]*redis.DurationCmd, len(keys))
	sizes := make([]*redis.IntCmd, len(keys))
	_, err := node.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, key := range keys {
			types[i], ttls[i], sizes[i] = p.Type(ctx, key.Name), p.PTTL(ctx, key.Name), p.MemoryUsage(ctx, key.Name)
		}
		return nil
	})
	if err != nil && !redisstore.Answered(err) {
		return nil, err
	}
	there := keys[:0]
	for i, key := range keys {
		if types[i].Err() != nil || ttls[i].Err() != nil {
			return nil, errors.Join(types[i].Err(), ttls[i].Err())
		}
		if key.Type = types[i].Val(); key.Type == "none" {
			continue
		}
		if key.TTL = ttls[i].Val(); key.TTL < 0 {
			key.TTL = NoTTL
		}
		key.Bytes = sizes[i].Val()
		there = append(there, key)
	}
	return there, nil
}

// Delete deletes keys and returns how many were there. The memory is freed in the background. It publishes the deleted
// counters, as refunds: else processes would go on with their cached denials. It does so also for the keys that were
// deleted before an error, and for those that may have been.
func (k *Keys) Delete(ctx context.Context, keys []Key) (deleted int, err error) {
	cmds, err := k.Client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, key := range keys {
			p.Unlink(ctx, key.Name) // one by one, as they lie in different slots of a cluster
		}
		return nil
	})
	var gone []Key
	for i, cmd := range cmds {
		if n, ok := cmd.(*redis.IntCmd); ok && i < len(keys) {
			deleted += int(n.Val())
			if n.Val() > 0 || n.Err() != nil && !redisstore.Answered(n.Err()) { // without an answer it may be done
				gone = append(gone, keys[i])
			}
		}
	}
	if unpublished := k.publish(ctx, gone); unpublished != nil {
		err = errors.Join(err, fmt.Errorf(
			"%d keys are deleted, but processes go on with the denials that they have cached: %w", deleted, unpublished))
	}
	return deleted, err
}

// publish says that keys are gone. It does so although ctx has ended: the keys are gone all the same.
func (k *Keys) publish(ctx context.Context, gone []Key) error {
	gone = slices.DeleteFunc(gone, func(key Key) bool { return !strings.HasPrefix(key.Name, k.Prefix()) })
	if len(gone) == 0 {
		return nil
	}
	channel := redisstore.Channel(k.Prefix())
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commandTimeout)
	defer cancel()
	_, err := k.Client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, key := range gone {
			p.Publish(ctx, channel, key.Name)
		}
		return nil
	})
	return err
}

func isNumber(text string) bool {
	return text != "" && strings.Trim(text, "0123456789") == ""
}

// escaped returns a glob pattern that matches this text only.
func escaped(text string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(text)
}
