package rlqs

import (
	"container/heap"
	"time"
)

// A pool is the buckets with one name of streams that broke, of Envoys that cannot be told apart: those of one node, or
// those that do not say who they are. Any of them may come again in a new stream. The keeper's lock guards it.
//
// Nobody knows which of the buckets such an Envoy had. So it goes on with the one of the lowest rate, and the others
// are charged for as long as any of them may last: what is charged for them is never less than what they let pass.
type pool struct {
	clients []*client // a heap, the lowest rate first
	until   time.Duration
}

// mostLenders bounds the others that are looked at when one bucket of a pool goes on.
const mostLenders = 100

// poolKey names a pool.
type poolKey struct {
	domain, node string
	id           BucketID
}

func (c *client) poolKey() poolKey { return poolKey{c.stream.domain, c.stream.node, c.id} }

// Len implements heap.Interface.
func (p *pool) Len() int { return len(p.clients) }

// Less implements heap.Interface.
func (p *pool) Less(i, j int) bool { return p.clients[i].rate < p.clients[j].rate }

// Swap implements heap.Interface.
func (p *pool) Swap(i, j int) {
	p.clients[i], p.clients[j] = p.clients[j], p.clients[i]
	p.clients[i].poolAt, p.clients[j].poolAt = i, j
}

// Push implements heap.Interface.
func (p *pool) Push(c any) {
	one := c.(*client) //nolint:errcheck,forcetypeassert // only enterPool calls it
	one.pool, one.poolAt = p, len(p.clients)
	p.clients = append(p.clients, one)
}

// Pop implements heap.Interface.
func (p *pool) Pop() any {
	last := len(p.clients) - 1
	c := p.clients[last]
	p.clients[last], p.clients = nil, p.clients[:last]
	c.pool = nil
	return c
}

// enterPool adds a bucket of a stream that broke to its pool.
func (k *Keeper) enterPool(c *client) {
	key := c.poolKey()
	p := k.pools[key]
	if p == nil {
		p = &pool{}
		k.pools[key] = p
	}
	heap.Push(p, c)
}

// leavePool removes a bucket from its pool, if it is in one.
func (k *Keeper) leavePool(c *client) {
	p := c.pool
	if p == nil {
		return
	}
	c.expires = c.lastsUntil()
	heap.Remove(p, c.poolAt)
	if p.Len() == 0 {
		delete(k.pools, c.poolKey())
	}
}

// goOn takes the bucket out of a pool that goes on in a new stream, after n requests were reported to have passed since
// a time. What was charged for the others covers those, too: it is not known which Envoy let them pass.
func (p *pool) goOn(k *Keeper, n float64, since time.Duration) *client {
	c := p.clients[0]
	if len(p.clients) > 1 {
		c.reported = since
	}
	k.leavePool(c)
	p.until = max(p.until, c.expires)
	for i := len(p.clients) - 1; i >= 0 && i >= len(p.clients)-mostLenders && c.unused < n; i-- {
		other := p.clients[i] // one of a high rate, as far as a heap is sorted
		if other.group != c.group || c.windowOf != other.windowOf {
			continue
		}
		part := max(0, min(n-c.unused, other.unused))
		inWindow := min(part, other.inWindow)
		c.unused, other.unused = c.unused+part, other.unused-part
		c.inWindow, other.inWindow = c.inWindow+inWindow, other.inWindow-inWindow
	}
	return c
}

// lastsUntil is when the last assignment is no longer in force.
func (c *client) lastsUntil() time.Duration {
	if c.pool == nil {
		return c.expires
	}
	return max(c.expires, c.pool.until)
}
