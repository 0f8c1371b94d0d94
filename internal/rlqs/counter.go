package rlqs

import (
	"iter"
	"math"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// counter is one of the limits' counters, and what this process may charge to it. The keeper's lock guards it.
type counter struct {
	key    string
	policy *limiter.Policy
	groups []*group

	sustained float64 // hits a second that can be charged for ever

	room     float64       // hits a second that it is thought to have; infinite while it denies nothing
	granted  float64       // hits a second that it granted lately
	began    time.Duration // when granted began to be measured
	lastAt   time.Duration // of granted
	deniedAt time.Duration

	remaining int64         // after the last charge, of a limit that counts in windows
	ends      time.Duration // when the fixed window that it was charged in ends, as far as is known; 0 if it is not
	window    int           // number of that fixed window, which tells it from others; 0 of what has none

	bursts   float64       // of all clients, in the step that is being done
	lookedAt time.Duration // when it was last looked whether they are
	dirty    bool          // the shares are to be divided again
	isListed bool          // among those that are
	total    float64       // that was divided last

	demand  sum // of all keepers' claims, in parts of the limit's rate
	buckets sum // of all keepers
}

// clients are those of all groups that are charged to the counter.
func (ct *counter) clients() iter.Seq[*client] {
	return func(yield func(*client) bool) {
		for _, g := range ct.groups {
			for _, c := range g.clients {
				if !yield(c) {
					return
				}
			}
		}
	}
}

// open has the counter begin again where its fixed window has ended.
func (ct *counter) open(now time.Duration) (opened bool) {
	if ct.ends == 0 || now < ct.ends {
		return false
	}
	ct.ends, ct.remaining = 0, ct.policy.Limit()
	ct.window++
	ct.room, ct.deniedAt = math.Inf(1), now-contended
	ct.dirty = true
	return true
}

// learn takes what the store answered to a charge: how many hits it granted, and whether that was less than asked for
// because of this counter.
func (ct *counter) learn(d *limiter.Decision, got int64, isShort bool, now time.Duration) {
	ct.granted *= math.Exp(-(now - ct.lastAt).Seconds() / contended.Seconds())
	ct.granted += float64(got) / contended.Seconds()
	ct.lastAt = now
	ct.remaining = d.Remaining
	if ct.policy.CountsInWindows() && d.ResetAfter > 0 {
		ct.sees(now + d.ResetAfter)
	}
	if !isShort {
		return
	}
	ct.deniedAt = now
	age := max(now-ct.began, tick)
	lately := ct.granted / (1 - math.Exp(-age.Seconds()/contended.Seconds())) // of less than a second
	ct.room = lately*probeOf + ct.most()/probePart
	ct.dirty = true
}

// sees takes the end of a fixed window as an answer of the store has it, which is late by the time that the answer
// took: of one window the earliest end is the best.
func (ct *counter) sees(ends time.Duration) {
	switch half := ct.policy.Window() / 2; {
	case ct.ends == 0:
		ct.ends = ends
	case ends > ct.ends+half || ends < ct.ends-half:
		ct.ends = ends
		ct.window++
	default:
		ct.ends = min(ct.ends, ends)
	}
}

// most is how many hits a second the limit gives at most: of one that counts in windows, a part of what remains.
func (ct *counter) most() float64 {
	if isWindow(ct.policy) {
		return max(ct.sustained, float64(ct.remaining)/leavePart/interval.Seconds())
	}
	return ct.sustained
}

// divisible is how many hits a second are divided, of clients that want that many.
func (ct *counter) divisible(wanted float64, now time.Duration) float64 {
	most := ct.most()
	fair := ct.fair(most)
	if now-ct.deniedAt < contended {
		return min(ct.room, fair, wanted*probeOf+most/probePart)
	}
	ct.room = math.Inf(1)
	return min(fair, wanted*slackOf+most/slackPart)
}
