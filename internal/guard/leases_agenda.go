package guard

import (
	"sync"
	"time"

	"github.com/weir-ratelimit/weir/internal/panics"
)

// agenda says when to look at which lease again. Each lease is in it once.
type agenda struct {
	mu  sync.Mutex
	due map[time.Duration][]*lease // nil once it is closed
}

// lookAgain has a lease renewed at a time. The leases of one moment share a timer.
func (l *Leases) lookAgain(e *lease, at time.Duration) {
	a := &l.agenda
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.due == nil:
		return
	case a.due[at] == nil:
		time.AfterFunc(at-l.now(), func() { panics.Catch("renewal of leases", func() { l.renew(at) }) })
	}
	a.due[at] = append(a.due[at], e)
}

// begin takes the leases of a moment off the agenda, and counts their renewal as a call under way.
func (a *agenda) begin(at time.Duration, calls *sync.WaitGroup) (due []*lease) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.due == nil {
		return nil
	}
	calls.Add(1)
	due = a.due[at]
	delete(a.due, at)
	return due
}

// close ends all renewals that have not begun.
func (a *agenda) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.due = nil
}

// renew looks at the leases of a moment: it releases what nobody needs, acquires what hot keys need, and forgets keys
// that are no longer hot. It does that in few calls. Each is to one shard: if that fails, the permits of others are
// not lost with it.
func (l *Leases) renew(at time.Duration) {
	due := l.agenda.begin(at, &l.calls)
	if due == nil {
		return
	}
	defer l.calls.Done()
	now, xs := l.now(), make(exchanges)
	for _, e := range due {
		e.shard.mu.Lock()
		by := l.shardOf(e)
		x, next := l.renewOne(xs[by], e, now)
		if next > 0 {
			l.lookAgain(e, next)
		}
		e.shard.mu.Unlock()
		if x != nil && len(x.renewals) == maxRenewals {
			x.send()
			x = nil
		}
		xs[by] = x
	}
	xs.send()
}

// renewOne renews the lease's permits if it is time to, in the exchange that it returns, and says when to look again:
// 0 if the lease is forgotten.
func (l *Leases) renewOne(x *exchange, e *lease, now time.Duration) (_ *exchange, next time.Duration) {
	span := e.span
	if e.call != nil {
		return x, now + span/4
	}
	if due := e.due(); e.permits > 0 && due > now {
		return x, due
	}
	x = l.begin(x, e, now)
	requests, _ := e.rate.per(now, span)
	if e.call == nil && e.surplus == 0 && (requests < warm || e.shard.closed) {
		delete(e.shard.leases, e.hit.Key)
		e.grant++
		return x, 0
	}
	return x, moment(now+span, span)
}
