package rlqs

import (
	"cmp"
	"net"
	"sync"
)

// peers are the open streams of a Service by who opened them. If there are too many, a peer that has fewer than another
// one gets a stream of that one. It is safe for concurrent use.
type peers struct {
	most int

	mu           sync.Mutex
	open         map[*seat]struct{}
	hosts, conns map[string]int // how many streams each has
}

// seat is one stream, and who opened it.
type seat struct {
	host, conn string
	lost       chan struct{} // closed when the stream is to end for another peer's
}

func newPeers(most int) *peers {
	return &peers{most: most, open: map[*seat]struct{}{}, hosts: map[string]int{}, conns: map[string]int{}}
}

// enter counts a stream from an address. It returns nil if there are too many, and no peer has more than this one.
func (p *peers) enter(from net.Addr) *seat {
	one := &seat{lost: make(chan struct{})}
	if from != nil {
		one.host, one.conn = from.Network(), from.String() // clients of a Unix socket have no names
		if host, _, err := net.SplitHostPort(one.conn); err == nil {
			one.host = host
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.open) >= p.most {
		victim := p.victim(one)
		if victim == nil {
			return nil
		}
		p.remove(victim)
		close(victim.lost)
	}
	p.open[one] = struct{}{}
	p.hosts[one.host]++
	p.conns[one.conn]++
	return one
}

// victim returns a stream to end for another one: of the host that has the most, or of the same host's connection that
// has the most. It is nil where that would only turn the tables. p is locked.
func (p *peers) victim(of *seat) (found *seat) {
	for one := range p.open {
		isRicher := p.hosts[one.host] > p.hosts[of.host]+1 || one.host == of.host && p.conns[one.conn] > p.conns[of.conn]+1
		if isRicher && (found == nil || p.compare(one, found) > 0) {
			found = one
		}
	}
	return found
}

func (p *peers) compare(a, b *seat) int {
	return cmp.Or(cmp.Compare(p.hosts[a.host], p.hosts[b.host]), cmp.Compare(p.conns[a.conn], p.conns[b.conn]))
}

// leave is called when a stream has ended.
func (p *peers) leave(one *seat) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.remove(one)
}

// remove forgets a stream, if it is still counted. p is locked.
func (p *peers) remove(one *seat) {
	if _, ok := p.open[one]; !ok {
		return
	}
	delete(p.open, one)
	count := func(of map[string]int, name string) {
		if of[name]--; of[name] == 0 {
			delete(of, name)
		}
	}
	count(p.hosts, one.host)
	count(p.conns, one.conn)
}

func (p *peers) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.open)
}
