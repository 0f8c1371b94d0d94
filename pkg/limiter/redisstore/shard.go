package redisstore

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// A shard is a master of a cluster with its slots. It is called by the master's address: when a replica takes over, the
// slots are another shard's.

// serverError names the server that an error comes from.
type serverError struct {
	store *Store
	shard string // the master's address, in a cluster; empty if the error is not about one master
	err   error
}

// Error implements error. What the server says is cut if it is long: all errors of requests and pings come by here.
func (e *serverError) Error() string {
	text := e.store.Label() + ": "
	if e.shard != "" {
		text += e.shard + ": "
	}
	return text + cut(e.err.Error())
}

// Unwrap returns the reason.
func (e *serverError) Unwrap() error { return e.err }

// Failures calls each for every server that an error of Store.Take, Group.Take or Ping is about. store is
// Options.Name, shard the address of a master of a cluster; shard is empty outside of clusters, and if the error is
// not about one master. why is the error of that server alone,
// which names it: see Answered.
func Failures(err error, each func(store, shard string, why error)) {
	for err != nil {
		if e, ok := err.(*serverError); ok { //nolint:errorlint // the loop unwraps, and has to find every one
			each(e.store.limitsName, e.shard, e)
			return
		}
		if several, ok := err.(interface{ Unwrap() []error }); ok {
			for _, err := range several.Unwrap() {
				Failures(err, each)
			}
			return
		}
		err = errors.Unwrap(err)
	}
}

// named says in an error which server it comes from.
func (q *queue) named(err error) error {
	if err == nil {
		return nil
	}
	return q.store.named(q.shard, err)
}

// named says in an error that it comes from this store, unless the error says so already.
func (s *Store) named(shard string, err error) error {
	if _, ok := errors.AsType[*serverError](err); ok {
		return err
	}
	return &serverError{s, shard, err}
}

// Shard is the shard that has the counter of a key, as far as is known without asking; else, and outside of clusters, "".
func (s *Store) Shard(key string) string {
	if s.cluster == nil || !s.charted.Load() {
		return ""
	}
	node, err := s.cluster.MasterForKey(context.Background(), s.besides(key)) // does not ask, since it is charted
	if err != nil {
		return ""
	}
	return node.Options().Addr
}

// besides is a key in the slot of a counter's: if that is possible, one that need not be made.
func (s *Store) besides(key string) string {
	cut := strings.IndexByte(key, '|') + 1
	if cut == 0 || cut == len(key) || strings.ContainsAny(key, "{}") || strings.Contains(s.prefix, "{") {
		return s.key(key)
	}
	return key[cut:] // what tagged puts in braces
}

// ProbeShard is Probe of the master that has the counter of a key by now. Outside of a cluster it is Probe.
func (s *Store) ProbeShard(ctx context.Context, key string) error {
	if s.cluster == nil {
		return s.Probe(ctx)
	}
	s.cluster.ReloadState(ctx) // another may have taken over: the next probe knows
	return s.probe(ctx, func(ctx context.Context) error {
		node, err := s.cluster.MasterForKey(ctx, s.key(key))
		if err == nil {
			err = s.ping(ctx, node, s.prefix+probeKey) // MOVED is a sign of life, too
		}
		return s.unavailable(err)
	})
}

// chart finds out who has which slot.
func (s *Store) chart(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, max(telling, s.timeout))
	defer cancel()
	none := func(context.Context, *redis.Client) error { return nil }
	return s.unavailable(s.cluster.ForEachMaster(ctx, none)) // it looks before
}

// pingMasters pings each master by a key that is its own.
func (s *Store) pingMasters(ctx context.Context) error {
	return s.cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
		addr := node.Options().Addr
		for i := range slots {
			key := s.key(probeKey + "|" + strconv.Itoa(i))
			owner, err := s.cluster.MasterForKey(ctx, key)
			if err != nil {
				return err
			}
			if owner.Options().Addr == addr {
				if err := s.ping(ctx, node, key); err != nil {
					return s.named(addr, err)
				}
				return nil
			}
		}
		return nil // has no counters of ours
	})
}
