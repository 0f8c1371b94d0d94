package redisstore

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// Shard returns the address of the master that has the counter with this key. It returns "" without a cluster, and
// before the store has read the cluster's topology. It makes no call.
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

// lane returns the queue for the counter with this key. Each master of a cluster has its own queue, so that a master
// that hangs does not delay requests to the others.
func (s *Store) lane(ctx context.Context, key string) (*queue, error) {
	if s.cluster == nil {
		return s.queue, nil
	}
	if !s.knowsTopology.Load() {
		if err := s.readTopology(ctx, s.o.Timeout); err != nil {
			return nil, fmt.Errorf("find the master of a slot: %w", err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, s.o.Timeout)
	defer cancel()
	addr := ""
	err := survive(func() error {
		node, err := s.cluster.MasterForKey(ctx, s.keyInSlot(key)) // no call: the topology is known
		if err == nil {
			addr = node.Options().Addr
		}
		return err
	})
	if err != nil {
		s.cluster.ReloadState(ctx)
		return nil, fmt.Errorf("find the master of a slot: %w", err)
	}
	lane, ok := s.lanes.Load(addr)
	if !ok {
		lane, _ = s.lanes.LoadOrStore(addr, newQueue(s, addr))
	}
	q, _ := lane.(*queue) // lanes holds only queues
	return q, nil
}

// readTopology reads which master owns which slot. Unlike go-redis, it returns when the time is over.
func (s *Store) readTopology(ctx context.Context, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	answer := make(chan error, 1)
	go func() {
		answer <- survive(func() error {
			none := func(context.Context, *redis.Client) error { return nil }
			err := s.cluster.ForEachMaster(ctx, none) // reads the topology first
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

// byScope returns one batch for the calls of each scope.
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

// isMoving reports whether err says that a slot is being moved. Until the end of the move, the slot's keys are spread
// over two servers, so no call may have several of them.
func isMoving(err error) bool {
	return redis.HasErrorPrefix(err, "TRYAGAIN")
}
