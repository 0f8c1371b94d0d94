package rlqs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/weir-ratelimit/weir/internal/logging"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Bounds and defaults of a Keeper.
const (
	DefaultTTL        = 15 * time.Second // three reports of an Envoy
	MinTTL            = 10 * time.Second // below, one report that is lost has an Envoy fall back
	DefaultMaxBuckets = 1000             // of a stream
	DefaultTimeout    = 50 * time.Millisecond

	// maxAllBuckets bounds the buckets of all streams, also of broken ones: about 100 MB. A host gets another one while
	// it has fewer than are free, so one alone gets half of them, and never takes all.
	maxAllBuckets = 100_000

	droppedLines = time.Minute          // between two log lines about buckets that are too many
	betweenSteps = 2 * time.Millisecond // so that many new buckets share a step
)

// Options are the parts of a Keeper.
type Options struct {
	// Store has the counters that assignments are charged to.
	Store limiter.Store
	// Resolver finds what a bucket counts.
	Resolver Resolver
	// TTL is how long an assignment holds, in whole seconds, at least MinTTL. 0 is DefaultTTL.
	TTL time.Duration
	// MaxBuckets bounds the buckets of a stream; further ones get no assignment. 0 is DefaultMaxBuckets.
	MaxBuckets int
	// Timeout bounds a call to Store. 0 is DefaultTimeout.
	Timeout time.Duration
	// Server says which server decides a hit, by a value that can be compared: hits of several never share a call, so that
	// one that fails concerns nobody else. Nil: there is only one.
	Server func(h *limiter.Hit) any
	// Decided gets what Envoys reported, soon after each report, from one goroutine at a time. It must be quick. Nil:
	// nobody does.
	Decided func([]Decided)
	// Logger gets what an operator should know. Nil: nobody does.
	Logger *slog.Logger
}

// Keeper divides limits among the Envoys that ask for parts of them. It charges ahead, to the limits' counters, what
// they may let pass (docs/adr/0077). It is safe for concurrent use.
type Keeper struct {
	o     Options
	sums  *limiter.Policy // of sumParams
	start time.Time
	wake  chan struct{} // something does not wait for the next tick
	halt  chan struct{} // closed by Stop
	done  chan struct{} // closed when Run has returned

	mu       sync.Mutex
	streams  map[*Stream]struct{} // also those that broke, while their assignments may be in force
	pools    map[poolKey]*pool    // of the buckets of those that broke
	groups   map[string]*group
	counters map[string]*counter
	buckets  int
	hosts    map[string]int // buckets of each host
	most     int            // of buckets
	urgent   []*client      // new ones, and those whose target changed
	reported []*client      // of which something is to be counted

	leftShadows []*ask // of clients that are gone
	changed     bool   // all are to be resolved again
	running     bool
	stopped     bool
	logged      map[string]struct{} // reasons for no assignment that were logged
	dropped     logging.Every       // lines about buckets that are too many
	stats       Stats
}

// New returns a Keeper, whose Run does the work.
func New(o Options) (*Keeper, error) {
	o.TTL, o.MaxBuckets = cmp.Or(o.TTL, DefaultTTL), cmp.Or(o.MaxBuckets, DefaultMaxBuckets)
	o.Timeout = cmp.Or(o.Timeout, DefaultTimeout)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	switch {
	case o.Store == nil || o.Resolver == nil:
		return nil, errors.New("quota keeper: Store and Resolver must be set")
	case o.TTL < MinTTL || o.TTL%time.Second != 0:
		return nil, fmt.Errorf("quota keeper: TTL must be whole seconds, at least %s, got %s", MinTTL, o.TTL)
	case o.MaxBuckets < 0:
		return nil, fmt.Errorf("quota keeper: MaxBuckets must not be negative, got %d", o.MaxBuckets)
	case o.Timeout < 0:
		return nil, fmt.Errorf("quota keeper: Timeout must not be negative, got %s", o.Timeout)
	}
	sums, err := limiter.NewPolicy(sumParams)
	if err != nil {
		return nil, err
	}
	return &Keeper{
		o: o, sums: sums, most: max(maxAllBuckets, 2*o.MaxBuckets), start: time.Now(),
		wake: make(chan struct{}, 1), halt: make(chan struct{}), done: make(chan struct{}),
		streams: make(map[*Stream]struct{}), hosts: make(map[string]int),
		pools: make(map[poolKey]*pool), groups: make(map[string]*group), counters: make(map[string]*counter),
		logged: make(map[string]struct{}), dropped: logging.Every{Interval: droppedLines},
	}, nil
}

// now is the time since New.
func (k *Keeper) now() time.Duration { return time.Since(k.start) }

// Run charges and assigns until ctx is done or Stop is called. It is called once.
func (k *Keeper) Run(ctx context.Context) error {
	k.mu.Lock()
	k.running = true
	k.mu.Unlock()
	defer close(k.done)
	defer k.observeRest()
	timer := time.NewTimer(0)
	defer timer.Stop()
	last := time.Duration(0)
	for {
		select {
		case <-ctx.Done():
			k.stop()
			return nil
		case <-k.halt:
			k.chargeLast(ctx)
			return nil
		case <-k.wake:
			timer.Reset(last + betweenSteps - k.now())
			continue
		case <-timer.C:
		}
		next := k.step(ctx)
		last = k.now()
		timer.Reset(next - last)
	}
}

// Changed is called after rules or boosts changed or a counter was reset. All buckets are resolved again, what was
// charged ahead to counters counts no more, and new shares are sent at once.
func (k *Keeper) Changed() {
	k.mu.Lock()
	k.changed = true
	k.mu.Unlock()
	k.wakeUp()
}

// wakeUp has Run do a step now.
func (k *Keeper) wakeUp() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// Stop charges ahead what Envoys may let pass until they have found another server, as far as it fits, and ends Run. It
// returns when Run has, or when ctx is done. From then on nothing is assigned. The streams are their owner's to end.
func (k *Keeper) Stop(ctx context.Context) {
	k.mu.Lock()
	running := k.running
	k.mu.Unlock()
	if k.stop(); !running {
		return
	}
	select {
	case <-k.done:
	case <-ctx.Done():
	}
}

func (k *Keeper) stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.stopped {
		k.stopped = true
		close(k.halt)
	}
}

// eachClient calls f with all clients.
func (k *Keeper) eachClient(f func(*client)) {
	for s := range k.streams {
		for _, c := range s.buckets {
			f(c)
		}
	}
}
