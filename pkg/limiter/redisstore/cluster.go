package redisstore

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// slots is how many parts a Redis Cluster has. A script may touch the keys of one only.
const slots = 16384

// tagged is a counter's key with what the limits of one descriptor share in braces: they lie in one slot, and their
// requests are decided in one step. The values that a request brings have no braces of their own left in a key, so that
// nobody chooses the slot of another's counter.
func tagged(key string) string {
	cut := strings.IndexByte(key, '|') + 1
	if cut == 0 || strings.ContainsAny(key, "{}") {
		return key
	}
	return key[:cut] + "{" + key[cut:] + "}"
}

// untagged is the key that tagged made this of.
func untagged(key string) string {
	cut := strings.Index(key, "|{") + 1
	if cut == 0 || !strings.HasSuffix(key, "}") {
		return key
	}
	return key[:cut] + key[cut+1:len(key)-1]
}

// slotOf is where a key lies in a Redis Cluster: by what is between its first { and the next }, else by all of it.
func slotOf(key string) uint16 {
	if open := strings.IndexByte(key, '{'); open >= 0 {
		if length := strings.IndexByte(key[open+1:], '}'); length > 0 {
			key = key[open+1 : open+1+length]
		}
	}
	crc := uint16(0)
	for i := range len(key) {
		crc = crc<<8 ^ crc16[byte(crc>>8)^key[i]]
	}
	return crc % slots
}

// crc16 is the table of the CRC of polynomial 0x1021 (XMODEM), which the Redis Cluster specification names.
var crc16 = func() (table [256]uint16) {
	for i := range table {
		crc := uint16(i) << 8
		for range 8 {
			carry := crc >> 15
			crc = crc<<1 ^ carry*0x1021
		}
		table[i] = crc
	}
	return table
}()

// lane is the queue of the master that has the slot of a key. Each has its own, so that one that does not answer
// holds up nobody who asks another.
func (s *Store) lane(ctx context.Context, key string) (*queue, error) {
	if s.cluster == nil {
		return s.queue, nil
	}
	if !s.charted.Load() {
		if err := s.firstChart(ctx); err != nil {
			return nil, fmt.Errorf("find the master of a slot: %w", err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	node, err := s.cluster.MasterForKey(ctx, key) // does not ask, since it is charted
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

// firstChart asks who has which slot, for the first time. It returns when ctx is done, which go-redis would not.
func (s *Store) firstChart(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	asked := make(chan error, 1)
	go func() {
		_, err := s.cluster.MasterForKey(ctx, "")
		if err == nil {
			s.charted.Store(true)
		}
		asked <- err
	}()
	select {
	case err := <-asked:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// decideSlots decides a batch by one script call for each slot, all in one go. Calls that a slot which is moving does
// not take together are asked again one by one.
func (r *batcher) decideSlots(ctx context.Context, b *batch) {
	groups := bySlot(b.calls)
	r.runAll(ctx, groups)
	var again []*batch
	for _, g := range groups {
		if len(g.calls) == 1 || !isMoving(g.calls[0].err) {
			continue
		}
		for _, c := range g.calls {
			c.forget()
			alone := new(batch)
			alone.add(c)
			again = append(again, alone)
		}
	}
	if again != nil {
		r.runAll(ctx, again)
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

// process sends commands; their errors are theirs.
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

// reload has the client look who has which slot: after a failure that may be another server than before.
func (r *batcher) reload(ctx context.Context) {
	if c, ok := r.client.(*redis.ClusterClient); ok {
		c.ReloadState(ctx)
	}
}

// isMoving says whether err is that of a slot that is being moved, some of whose keys are here and some there, so that
// no call may have several.
func isMoving(err error) bool {
	return redis.HasErrorPrefix(err, "TRYAGAIN")
}
