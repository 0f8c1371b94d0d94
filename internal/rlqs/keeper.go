package rlqs

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/weir-ratelimit/weir/internal/logging"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

// Bounds and times of a Keeper.
const (
	// ttl is the time for which an Envoy may use an assignment after its last report, in whole seconds. Below 10 s, a
	// single lost report would make it fall back.
	ttl = 15 * time.Second

	maxBuckets    = 1000    // maximum number of buckets per stream
	maxAllBuckets = 100_000 // maximum number of buckets over all streams: about 100 MB

	tick         = 100 * time.Millisecond // time between two charges
	betweenSteps = 5 * time.Millisecond   // minimum time between two steps, so that several new buckets share a step
	betweenLines = 10 * time.Second       // minimum time between two log lines of the same kind that clients can cause
)

// Config are the flags of quotas for Envoys.
type Config struct {
	Quota bool `env:"WEIR_QUOTA" help:"Assign parts of limits to Envoys with the filter rate_limit_quota (RLQS), which then decide without calls to Weir: docs/operate/quotas.md. Experimental."`
}

// Options are the dependencies of a Keeper.
type Options struct {
	// Store has the counters that assignments are charged to. It must bound the time of each call.
	Store limiter.Store
	// Resolve returns the limits of a bucket. It must be safe for concurrent use; a Target must not change later.
	Resolve func(domain string, id BucketID) Target
	// Decided receives decisions that Envoys reported, one at a time. It must be fast, and must not call the Keeper.
	Decided func(Decided)
	// Reported receives the numbers of admitted and denied requests of each usage, under the conditions of Decided.
	Reported func(allowed, denied uint64)
	// Logger receives warnings for the operator.
	Logger *slog.Logger
}

// Keeper divides limits among Envoys, and charges requests that they may admit to the limits' counters in advance
// (docs/adr/0077). It is safe for concurrent use.
type Keeper struct {
	o     Options
	start time.Time
	wake  chan struct{} // has an element if a step must not wait for the next tick
	ended chan struct{} // closed by Stop

	demandPolicy *limiter.Policy // policy of demandParams

	mu        sync.Mutex
	streams   map[*Stream]struct{} // including broken streams while their assignments may apply
	books     map[string]*book
	counters  map[string]*counter
	bucketsOf perHost // buckets of all streams
	shadows   []*ask  // reports for limits in shadow mode that are not charged yet
	tickAt    time.Duration

	changed bool // whether all buckets must be resolved again
	stopped bool
	dropped logging.Every // bounds the log lines about too many buckets
	refused logging.Every // bounds the log lines about buckets that get no assignment
	stats   Stats
}

// New returns a Keeper. The caller must call Run.
func New(o Options) (*Keeper, error) {
	demandPolicy, err := limiter.NewPolicy(demandParams)
	if err != nil {
		return nil, err
	}
	return &Keeper{
		o: o, demandPolicy: demandPolicy, start: time.Now(),
		wake: make(chan struct{}, 1), ended: make(chan struct{}),
		streams: map[*Stream]struct{}{}, books: map[string]*book{}, counters: map[string]*counter{},
		bucketsOf: perHost{most: maxAllBuckets, hosts: map[string]int{}},
		dropped:   logging.Every{Interval: betweenLines}, refused: logging.Every{Interval: betweenLines},
	}, nil
}

// now returns the time since New.
func (k *Keeper) now() time.Duration { return time.Since(k.start) }

// Run charges and assigns until ctx is done or Stop is called. Call it once.
func (k *Keeper) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	last := time.Duration(0)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-k.wake:
			timer.Reset(last + betweenSteps - k.now())
			continue
		case <-timer.C:
		}
		k.step(ctx)
		last = k.now()
		timer.Reset(max(k.tickAt-last, betweenSteps))
	}
}

// step charges and assigns: at a tick for all books, between ticks for books with new buckets.
func (k *Keeper) step(ctx context.Context) {
	now := k.now()
	isTick := now >= k.tickAt
	if isTick {
		k.tickAt = now.Truncate(tick) + tick
	}
	k.mu.Lock()
	if k.stopped {
		k.mu.Unlock()
		return
	}
	if k.changed {
		k.resolveAll(now) //nolint:contextcheck // the log does not use the context
	}
	k.look(now)
	k.divide(now)
	asks := k.shadows
	k.shadows = nil
	for _, b := range k.books {
		if isTick || b.urgent {
			b.urgent = false
			asks = append(asks, b.plan(now))
		}
	}
	if isTick {
		asks = append(asks, k.askDemand(now)...)
	}
	k.mu.Unlock()

	k.chargeAll(ctx, asks)

	k.mu.Lock()
	defer k.mu.Unlock()
	after := k.now()
	for _, a := range asks {
		if k.noteShadow(a); a.demand != nil {
			a.demand.learn(a, after)
		} else if a.book != nil && !k.stopped {
			k.settle(a, now, after)
		}
	}
}

// look drops expired clients, abandons idle buckets, and responds to reports of buckets that need no charge.
func (k *Keeper) look(now time.Duration) {
	for key, b := range k.books {
		b.account(now)
		if len(b.clients) == 0 && b.back < 1 {
			k.forget(key, b)
		}
	}
	k.eachClient(func(c *client) {
		switch {
		case c.isBroken():
			if now >= c.expires {
				k.drop(c)
			}
		case c.idle >= idleReports:
			k.abandon(c, now)
		case c.book == nil && c.reply:
			k.send(c, Assignment{Strategy: c.fixed}, now)
		}
	})
}

// Changed must be called after rules changed or a counter was reset. It resolves all buckets again, discards charges in
// advance, and sends new shares at once.
func (k *Keeper) Changed() {
	k.mu.Lock()
	k.changed = true
	k.mu.Unlock()
	reload.Hint(k.wake)
}

// Stop charges the requests that Envoys may admit until they have found another server, as far as they fit. Then it
// ends all gRPC streams, including those that begin later. Envoys keep their assignments until these expire, and open
// another stream with their next report.
func (k *Keeper) Stop(ctx context.Context) {
	k.mu.Lock()
	wasStopped := k.stopped
	k.stopped = true
	k.mu.Unlock()
	if !wasStopped {
		k.chargeLast(ctx)
		close(k.ended)
	}
}

// eachClient calls f for all clients.
func (k *Keeper) eachClient(f func(*client)) {
	for s := range k.streams {
		for _, c := range s.buckets {
			f(c)
		}
	}
}

// perHost shares buckets among hosts: a host may take a bucket while it has fewer buckets than are free, so a single
// host gets half of all buckets, and leaves room for other hosts. The caller must lock it.
type perHost struct {
	most, used int
	hosts      map[string]int
}

// take takes a bucket for the host. It returns false if the host may not have more.
func (p *perHost) take(host string) bool {
	if p.hosts[host] >= p.most-p.used {
		return false
	}
	p.hosts[host]++
	p.used++
	return true
}

// leave frees a bucket of the host.
func (p *perHost) leave(host string) {
	p.used--
	if p.hosts[host]--; p.hosts[host] == 0 {
		delete(p.hosts, host)
	}
}
