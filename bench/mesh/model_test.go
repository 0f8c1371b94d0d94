package mesh_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
)

// Bounds of redisstore's queue, which the model's lane follows.
const (
	maxBatch   = 256
	maxFlights = 4
	crowd      = 8
)

// costs are how long things take.
type costs struct {
	OneWay  time.Duration `json:"one_way_ns"`  // between replica and shard
	PerCall time.Duration `json:"per_call_ns"` // of Redis, for a script call
	PerHit  time.Duration `json:"per_hit_ns"`  // and for each hit in it
}

// shard is one Redis: it does one call after the other. Its counters are the memory store's, on virtual time.
type shard struct {
	costs
	store *memstore.Store

	mu          sync.Mutex
	free        time.Time // when it is done with all calls that have come
	busy        time.Duration
	calls, hits int
}

func newShard(t *testing.T, c costs) *shard {
	t.Helper()
	s, err := memstore.New(memstore.Options{Now: func() int64 { return time.Now().UnixMicro() }, SweepEvery: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return &shard{costs: c, store: s}
}

// do decides the calls of a batch as a shard would that they travel to, and returns when the answers are back.
func (s *shard) do(batch []*call) {
	time.Sleep(s.OneWay)
	hits := 0
	for _, c := range batch {
		hits += len(c.hits)
	}
	took := s.PerCall + time.Duration(hits)*s.PerHit
	s.mu.Lock()
	done := time.Now()
	if s.free.After(done) {
		done = s.free
	}
	done = done.Add(took)
	s.free = done
	s.busy += took
	s.calls++
	s.hits += hits
	s.mu.Unlock()
	time.Sleep(time.Until(done))
	for _, c := range batch {
		c.err = s.store.Take(context.Background(), c.hits, c.out)
	}
	time.Sleep(s.OneWay)
}

// call is a request on its way.
type call struct {
	hits []limiter.Hit
	out  []limiter.Decision
	err  error
	done chan struct{}
}

// lane is a replica's queue to one shard, with the rules of redisstore's: what comes while calls are under way goes
// out with the next one.
type lane struct {
	to *shard

	mu            sync.Mutex
	waiting       []*call
	flights, last int
}

func (l *lane) take(hits []limiter.Hit, out []limiter.Decision) error {
	c := &call{hits: hits, out: out, done: make(chan struct{})}
	l.mu.Lock()
	l.waiting = append(l.waiting, c)
	begin := l.flights == 0 || (l.flights < maxFlights && l.last < crowd)
	if begin {
		l.flights++
	}
	l.mu.Unlock()
	if begin {
		go l.fly()
	}
	<-c.done
	return c.err
}

func (l *lane) fly() {
	for {
		l.mu.Lock()
		batch := l.waiting[:min(len(l.waiting), maxBatch)] // a request has one hit
		l.waiting = l.waiting[len(batch):]
		if len(batch) == 0 {
			l.flights--
			l.mu.Unlock()
			return
		}
		l.last = len(batch)
		l.mu.Unlock()
		l.to.do(batch)
		for _, c := range batch {
			close(c.done)
		}
	}
}

// cluster is a replica's view of the shards: a store.
type cluster []*lane

// Take decides hits of one key as a whole. Those of several keys are what leases give back and take ahead: each shard
// gets a call for its own.
func (c cluster) Take(_ context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	parts := make(map[*lane][]int) // indexes of hits
	for i := range hits {
		to := c.of(hits[i].Key)
		parts[to] = append(parts[to], i)
	}
	if len(parts) == 1 {
		return c.of(hits[0].Key).take(hits, out) //nolint:contextcheck // a batch outlives its requests, as in redisstore
	}
	errs := make([]error, len(c))
	var running sync.WaitGroup
	for n, to := range c {
		part := parts[to]
		if len(part) == 0 {
			continue
		}
		running.Go(func() { //nolint:contextcheck // as above
			some, decided := make([]limiter.Hit, len(part)), make([]limiter.Decision, len(part))
			for i, at := range part {
				some[i] = hits[at]
			}
			errs[n] = to.take(some, decided)
			for i, at := range part {
				out[at] = decided[i]
			}
		})
	}
	running.Wait()
	return errors.Join(errs...)
}

// of is the lane to the key's shard.
func (c cluster) of(key string) *lane {
	sum := uint32(2166136261) // FNV-1a, in place of the slot
	for _, b := range []byte(key) {
		sum = (sum ^ uint32(b)) * 16777619
	}
	return c[sum%uint32(len(c))]
}
