// Package rediskeys walks through Weir's keys in a Redis, page by page, so that a server with millions of them goes on
// answering meanwhile.
package rediskeys

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

const (
	// page is about how many keys the server looks at in one step: well below a millisecond.
	page = 500
	// timeout bounds each command.
	timeout = 5 * time.Second
	// connections, to each node of a cluster.
	connections = 2
)

// Key is one of Weir's keys.
type Key struct {
	Name   string
	Format string // the version of the format, "1"
	Rest   string // what follows it: a counter's key, or another name
	Type   string // Redis's word; empty if not asked for
	TTL    time.Duration
	Bytes  int64 // with the key's own, as MEMORY USAGE tells; 0 if it is not allowed
}

// NoTTL is the TTL of a key that stays for ever.
const NoTTL = time.Duration(-1)

// Published says whether the key holds published rules, which are no counter and are to stay.
func (k *Key) Published() bool { return k.Rest == "rules" }

// Boosts says whether the key holds the boosts, which are no counter either; weir boost remove ends them.
func (k *Key) Boosts() bool { return k.Rest == "boosts" }

// Keys is a Redis with a key prefix.
type Keys struct {
	store  *redisstore.Store
	client redis.UniversalClient
}

// Open does not connect. An error says what is wrong with the URL.
func Open(url, keyPrefix string) (*Keys, error) {
	store, err := redisstore.New(redisstore.Options{URL: url, KeyPrefix: keyPrefix, MinTimeout: timeout, PoolSize: connections})
	if err != nil {
		return nil, err
	}
	return &Keys{store: store, client: store.Client()}, nil
}

// Close ends the connections.
func (k *Keys) Close() error { return k.store.Close() }

// String names the server, without user and password.
func (k *Keys) String() string { return k.store.String() }

// Walk visits the keys of a format ("*" for all) whose rest is like a glob pattern of Redis, one page after the other, on every
// master of a cluster. A key that comes or goes meanwhile may be missing, and one may be visited twice. details says
// whether types, times to live and sizes are wanted. visit is called by one goroutine at a time.
func (k *Keys) Walk(ctx context.Context, format, match string, details bool, visit func(context.Context, []Key) error) error {
	pattern := escaped(k.store.KeyPrefix()) + format + ":" + match
	var one sync.Mutex
	scan := func(ctx context.Context, node *redis.Client) error {
		return k.scan(ctx, node, pattern, details, func(ctx context.Context, keys []Key) error {
			one.Lock()
			defer one.Unlock()
			return visit(ctx, keys)
		})
	}
	var err error
	switch client := k.client.(type) {
	case *redis.ClusterClient:
		err = client.ForEachMaster(ctx, scan)
	case *redis.Client:
		err = scan(ctx, client)
	default:
		err = fmt.Errorf("cannot walk through a %T", client)
	}
	if err != nil {
		return fmt.Errorf("keys of %s: %w", k.store, err)
	}
	return nil
}

func (k *Keys) scan(
	ctx context.Context, node *redis.Client, pattern string, details bool, visit func(context.Context, []Key) error,
) error {
	for cursor, first := uint64(0), true; first || cursor != 0; first = false {
		names, next, err := node.Scan(ctx, cursor, pattern, page).Result()
		if err != nil {
			return err
		}
		cursor = next
		keys := make([]Key, 0, len(names))
		for _, name := range names {
			format, rest, ok := strings.Cut(strings.TrimPrefix(name, k.store.KeyPrefix()), ":")
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

// describe asks for all that is known of the keys; those that are gone are left out.
func describe(ctx context.Context, node *redis.Client, keys []Key) ([]Key, error) {
	types, ttls, sizes := make([]*redis.StatusCmd, len(keys)), make([]*redis.DurationCmd, len(keys)), make([]*redis.IntCmd, len(keys))
	_, err := node.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, key := range keys {
			types[i], ttls[i], sizes[i] = p.Type(ctx, key.Name), p.PTTL(ctx, key.Name), p.MemoryUsage(ctx, key.Name)
		}
		return nil
	})
	var told redis.Error
	if err != nil && !errors.As(err, &told) {
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

// Delete deletes keys and says how many were there. The memory is freed in the background. All sidecars are told which
// counters are fully available again, as of refunds: the denials that they have cached would go on. That is so for the keys
// that were deleted before an error, too, and for those of which it is not known.
func (k *Keys) Delete(ctx context.Context, keys []Key) (deleted int, err error) {
	cmds, err := k.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, key := range keys {
			p.Unlink(ctx, key.Name) // one by one, as they lie in different slots of a cluster
		}
		return nil
	})
	var gone []Key
	for i, cmd := range cmds {
		if n, ok := cmd.(*redis.IntCmd); ok && i < len(keys) {
			deleted += int(n.Val())
			if n.Val() > 0 || unknown(n.Err()) {
				gone = append(gone, keys[i])
			}
		}
	}
	if tellErr := k.announce(ctx, gone); tellErr != nil {
		err = errors.Join(err, fmt.Errorf("%d keys are deleted, but sidecars go on with the denials that they have cached: %w", deleted, tellErr))
	}
	return deleted, err
}

// unknown says whether a command may have been done although there is no answer.
func unknown(err error) bool {
	var answer redis.Error
	return err != nil && !errors.As(err, &answer)
}

// announce tells sidecars that keys are gone. It does so although ctx has ended: the keys are gone all the same.
func (k *Keys) announce(ctx context.Context, gone []Key) error {
	gone = slices.DeleteFunc(gone, func(key Key) bool { return !strings.HasPrefix(key.Name, k.store.Prefix()) })
	if len(gone) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	_, err := k.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, key := range gone {
			p.Publish(ctx, k.store.Prefix()+"refunds", key.Name)
		}
		return nil
	})
	return err
}

func isNumber(text string) bool {
	return text != "" && strings.Trim(text, "0123456789") == ""
}

// escaped is a glob pattern that is like text only.
func escaped(text string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(text)
}
