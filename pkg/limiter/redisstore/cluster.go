package redisstore

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// A shard is a master of a cluster with its slots. Its name is the master's address: when a replica takes over, the
// slots belong to another shard.

// Shard returns the shard that has the counter of a key, as far as is known without a call; else, and outside of
// clusters, "".
func (s *Store) Shard(key string) string {
	if s.cluster == nil || !s.knowsTopology.Load() {
		return ""
	}
	node, err := s.cluster.MasterForKey(context.Background(), s.keyInSlot(key)) // no call: the topology is known
	if err != nil {
		return ""
	}
	return node.Options().Addr
}

// lane returns the queue of the master that has a counter. Each master has its own, so that one that does not
// answer delays no request to another.
func (s *Store) lane(ctx context.Context, key string) (*queue, error) {
	if s.cluster == nil {
		return s.queue, nil
	}
	if !s.knowsTopology.Load() {
		if err := s.learnTopology(ctx); err != nil {
			return nil, fmt.Errorf("find the master of a slot: %w", err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, s.o.Timeout)
	defer cancel()
	node, err := s.cluster.MasterForKey(ctx, s.keyInSlot(key)) // no call: the topology is known
	if err != nil {
		s.cluster.ReloadState(ctx)
		return nil, fmt.Errorf("find the master of a slot: %w", err)
	}
	addr := node.Options().Addr
	lane, ok := s.lanes.Load(addr)
	if !ok {
		lane, _ = s.lanes.LoadOrStore(addr, newQueue(s, addr))
	}
	q, _ := lane.(*queue) // nothing else is stored
	return q, nil
}

// takeSpread decides a request where the keys are on several servers.
func (s *Store) takeSpread(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	of := func(*limiter.Hit) *Store { return s }
	if len(hits) > 1 {
		if all := split(hits, of, false); len(all) > 1 {
			return takeSplit(ctx, s.within(ctx), hits, out, of, all)
		}
	}
	start := time.Now()
	err := s.takeScope(ctx, hits, out)
	if isMoving(err) && len(hits) > 1 {
		return takeSplit(ctx, s.within(ctx)-time.Since(start), hits, out, of, split(hits, of, true))
	}
	return err
}

// takeScope decides a request whose keys all have one scope.
func (s *Store) takeScope(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	start := time.Now()
	queue, err := s.lane(ctx, hits[0].Key)
	if err != nil {
		return err
	}
	if asked := time.Since(start); asked > s.o.Timeout/8 { // the map of slots had to be read first
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.o.Timeout-asked)
		defer cancel()
	}
	return queue.named(queue.take(ctx, s.scopeOf(hits[0].Key), hits, out))
}

// learnTopology asks which master has which slot, for the first time. It returns when ctx is done; go-redis would not.
func (s *Store) learnTopology(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.o.Timeout)
	defer cancel()
	answer := make(chan error, 1)
	go func() {
		answer <- survive(func() error {
			_, err := s.cluster.MasterForKey(ctx, "")
			if err == nil {
				s.knowsTopology.Store(true)
			}
			return err
		})
	}()
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// decideScopes decides a batch by one script call for each scope. Calls that a moving slot refuses to take together are
// sent once more, one by one.
func (r *batcher) decideScopes(ctx context.Context, b *batch) {
	groups := byScope(b.calls)
	r.run(ctx, groups...)
	var single []*batch
	for _, g := range groups {
		if len(g.calls) == 1 || !isMoving(g.calls[0].err) {
			continue
		}
		for _, c := range g.calls {
			c.forget()
			alone := new(batch)
			alone.add(c)
			single = append(single, alone)
		}
	}
	r.run(ctx, single...)
}

func byScope(calls []*call) (groups []*batch) {
	var scopes index[scope]
	for _, c := range calls {
		i, isNew := scopes.number(c.scope)
		if isNew {
			groups = append(groups, new(batch))
		}
		groups[i].add(c)
	}
	return groups
}

// reload has the client ask which master has which slot: after a failure that may be another server than before.
func (r *batcher) reload(ctx context.Context) {
	if c, ok := r.client.(*redis.ClusterClient); ok {
		c.ReloadState(ctx)
	}
}

// isMoving reports whether err says that a slot is being moved: some of its keys are on each of two servers, so
// no call may have several.
func isMoving(err error) bool {
	return redis.HasErrorPrefix(err, "TRYAGAIN")
}
