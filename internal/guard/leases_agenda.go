package guard

import (
	"sync"
	"time"
)

// agenda says when to look at which lease again. Each lease is in it once.
type agenda struct {
	mu      sync.Mutex
	due     map[time.Duration][]*lease
	next    time.Duration // the earliest; 0 if there is none
	earlier chan struct{} // next has come nearer
}

func newAgenda() agenda {
	return agenda{due: make(map[time.Duration][]*lease), earlier: make(chan struct{}, 1)}
}

// add puts a lease on the agenda.
func (a *agenda) add(e *lease, at time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.due[at] = append(a.due[at], e)
	if a.next == 0 || at < a.next {
		a.next = at
		select {
		case a.earlier <- struct{}{}:
		default:
		}
	}
}

// take takes what is due off the agenda, and says when to come again: 0 is when something is added.
func (a *agenda) take(now time.Duration) (due []*lease, next time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.next = 0
	for at, leases := range a.due {
		if at <= now {
			due = append(due, leases...)
			delete(a.due, at)
		} else if a.next == 0 || at < a.next {
			a.next = at
		}
	}
	return due, a.next
}

// renewUntilStopped releases what nobody needs, acquires what hot keys need, and forgets keys that are no longer hot,
// until stop.
func (l *Leases) renewUntilStopped() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		now := l.now()
		due, next := l.agenda.take(now)
		l.renew(due, now)
		if next > 0 {
			timer.Reset(next - now)
		} else {
			timer.Stop()
		}
		select {
		case <-timer.C:
		case <-l.agenda.earlier:
		case <-l.stop:
			return
		}
	}
}

// renew looks at the leases, and does what they need in few calls. Each is to one shard: if that fails, the permits of
// others are not lost with it.
func (l *Leases) renew(due []*lease, now time.Duration) {
	xs := make(exchanges)
	for _, e := range due {
		e.shard.mu.Lock()
		at := l.shardOf(e)
		x, next := l.renewOne(xs[at], e, now)
		if next > 0 {
			l.agenda.add(e, next)
		}
		e.shard.mu.Unlock()
		if x != nil && len(x.renewals) == maxRenewals {
			x.send()
			x = nil
		}
		xs[at] = x
	}
	xs.send()
}

// renewOne renews the lease's permits if it is time to, in the exchange that it returns, and says when to look again: 0
// if the lease is forgotten.
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
	if e.call == nil && e.reserved == 0 && (requests < warm || e.shard.closed) {
		delete(e.shard.leases, e.hit.Key)
		e.grant++
		return x, 0
	}
	return x, moment(now+span, span)
}
