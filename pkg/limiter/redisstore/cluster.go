package redisstore

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
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

// lane returns the queue of the master that has the slot of a key. Each master has its own, so that one that does not
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
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	node, err := s.cluster.MasterForKey(ctx, key) // no call: the topology is known
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

// learnTopology asks which master has which slot, for the first time. It returns when ctx is done; go-redis would not.
func (s *Store) learnTopology(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	answer := make(chan error, 1)
	go func() {
		var err error
		if panicked := survive(func() { _, err = s.cluster.MasterForKey(ctx, "") }); panicked != nil {
			err = panicked
		}
		if err == nil {
			s.knowsTopology.Store(true)
		}
		answer <- err
	}()
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// decideSlots decides a batch by one script call for each slot, all in one pipeline. Calls that a moving slot refuses
// to take together are sent once more, one by one.
func (r *batcher) decideSlots(ctx context.Context, b *batch) {
	groups := bySlot(b.calls)
	r.runAll(ctx, groups)
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
	if single != nil {
		r.runAll(ctx, single)
	}
}

func bySlot(calls []*call) []*batch {
	groups, of := make([]*batch, 0, len(calls)), make(map[uint16]*batch, len(calls))
	for _, c := range calls {
		g := of[c.slot]
		if g == nil {
			g = new(batch)
			groups, of[c.slot] = append(groups, g), g
		}
		g.add(c)
	}
	return groups
}

// runAll decides batches of one slot each.
func (r *batcher) runAll(ctx context.Context, groups []*batch) {
	scripts := make([]*script, len(groups))
	for i, g := range groups {
		r.write(g)
		scripts[i] = r.scripts.with(g.steps)
	}
	made := make([]*redis.Cmd, len(groups))
	for i, g := range groups {
		made[i] = g.command(ctx, "evalsha", scripts[i].sha)
		r.sent.batch(len(g.calls))
	}
	r.process(ctx, made)
	var unknown []*redis.Cmd
	for i, g := range groups {
		if redis.HasErrorPrefix(made[i].Err(), noScript) {
			made[i] = g.command(ctx, "eval", scripts[i].text)
			r.sent.texts.Add(1)
			unknown = append(unknown, made[i])
		}
	}
	r.process(ctx, unknown)
	for i, g := range groups {
		err := made[i].Err()
		if err == nil {
			err = g.read(made[i].Val())
			r.sent.restarts.note(g.restarted, time.Now())
		} else if !isMoving(err) {
			r.reload(ctx)
		}
		if err != nil {
			g.fail(err)
		}
	}
}

// process sends commands. Each command holds its own error.
func (r *batcher) process(ctx context.Context, cmds []*redis.Cmd) {
	switch len(cmds) {
	case 0:
	case 1:
		_ = r.client.Process(ctx, noRetry{cmds[0]})
	default:
		pipe := r.client.Pipeline()
		for _, cmd := range cmds {
			_ = pipe.Process(ctx, noRetry{cmd})
		}
		_, _ = pipe.Exec(ctx)
	}
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
