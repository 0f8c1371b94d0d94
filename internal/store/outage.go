package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-ratelimit/weir/internal/guard"
	"github.com/weir-ratelimit/weir/internal/panics"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

const (
	// quiet is how long no request must have failed before an outage is over of a store that could be reached, and
	// before what was counted locally meanwhile is forgotten.
	quiet = 5 * time.Second
	// loud is how long a failure policy decides before another log line says so, and loudAgain how long until the next.
	loud, loudAgain = time.Minute, 5 * time.Minute
	// mostlyDecides is the share of the requests, 1 in so many, below which failures are no policy that decides for
	// long, if the store answers in time.
	mostlyDecides = 100
	// pingWait is how long a store may take to say that it counts, and pingAgain how often one that does not is asked.
	pingWait  = 500 * time.Millisecond
	pingAgain = time.Second
)

// remote is a Redis that counts: --store, or a --named-store. It knows whether failure policies decide in its place.
type remote struct {
	store   *redisstore.Store
	name    string // as limits call it; empty for --store
	label   string // for logs: without a password
	timeout time.Duration
	o       *Options // Effects, Requests and Log
	// ping says whether it counts; pingInTime whether it does so within the time that requests have.
	ping, pingInTime func(ctx context.Context) error

	failures atomic.Uint64          // requests that were decided without it
	outage   atomic.Pointer[outage] // nil: it decides. It ends and changes in check alone
	counted  atomic.Bool            // it has counted since the process started

	mu     sync.Mutex // guards what check knows
	asked  time.Time
	why    error  // the answer
	seen   uint64 // failures by then
	all    uint64 // requests by then
	failed time.Time

	hears  bool // the refunds of other processes; guarded by Store.hearing
	isDeaf bool // the log has said that they are not heard; of the goroutine that hears them
}

// outage is a time in which failure policies decide in place of a store. It is immutable.
type outage struct {
	what     string // what the store does
	why      error
	since    time.Time
	policy   time.Time // since when more than a few requests are decided by policy
	loud     time.Time // of the latest line that says for how long
	failures uint64    // remote.failures when it began
}

// What the sentence about an outage says of the store.
const (
	unreachable   = "Redis unreachable at "
	doesNotCount  = "Redis does not count at "
	doesNotAnswer = "Redis does not answer in time at "
)

func newRemote(name string, s *redisstore.Store, o *Options) *remote {
	return &remote{
		store: s, name: name, label: s.Label(), timeout: s.Timeout(), o: o,
		pingInTime: s.PingInTime, ping: func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, pingWait)
			defer cancel()
			return s.Ping(ctx)
		},
	}
}

// fail notes a request that was decided without the store. The first one begins an outage, unless the breaker did not
// ask: then an outage has been logged, perhaps with its end, and the breaker's next probe ends the rest.
func (r *remote) fail(err error) {
	failures := r.failures.Add(1)
	if r.outage.Load() == nil && !errors.Is(err, guard.ErrNotAsked) {
		r.begin(context.Background(), err, failures-1)
	}
}

// begin has one line in the log for each outage: the sentence that GET /status has, too.
func (r *remote) begin(ctx context.Context, err error, failures uint64) {
	o := &outage{what: whatIs(err), why: err, since: time.Now(), policy: time.Now(), failures: failures}
	if r.outage.CompareAndSwap(nil, o) {
		r.say(ctx, o)
	}
}

func (r *remote) say(ctx context.Context, o *outage) {
	//nolint:sloglint // the sentence is one, also for operators who look for it
	r.o.Log.LogAttrs(ctx, slog.LevelError, r.sentence(), slog.String("error", o.why.Error()),
		slog.String("check", r.whatToCheck(o.why)))
}

func whatIs(err error) string {
	switch {
	case redisstore.Answered(err):
		return doesNotCount
	case redisstore.TimedOut(err):
		return doesNotAnswer
	default:
		return unreachable
	}
}

// sentence says that the store does not decide, since when, and what its limits do. It is empty while there is no
// outage.
func (r *remote) sentence() string {
	o := r.outage.Load()
	if o == nil {
		return ""
	}
	return o.what + r.label + " since " + o.since.UTC().Format(time.RFC3339) + ": " + r.o.Effects(r.name)
}

// Outage returns the sentence about each store that does not decide now; it is empty if all do.
func (s *Store) Outage(ctx context.Context) string {
	var all []string
	for _, r := range s.remotes {
		r.check(ctx)
		if sentence := r.sentence(); sentence != "" {
			all = append(all, sentence)
		}
	}
	return strings.Join(all, "; ")
}

// policyFor is how long on_store_failure has been deciding; 0 while the store does.
func (r *remote) policyFor() time.Duration {
	if o := r.outage.Load(); o != nil {
		return time.Since(o.policy)
	}
	return 0
}

// check asks whether the store decides, unless it was asked a moment ago, and logs an outage that begins, goes on or
// ends.
func (r *remote) check(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.asked.IsZero() && time.Since(r.asked) < pingAgain/2 || errors.Is(ctx.Err(), context.Canceled) {
		return // the process stops, or a caller has gone
	}
	o, ping := r.outage.Load(), r.ping
	if o != nil {
		ping = r.pingInTime
	}
	r.why = ping(context.WithoutCancel(ctx)) // the caller's time may be over
	now := time.Now()
	failures, requests := r.failures.Load(), r.o.Requests()
	fails, asks := failures-r.seen, requests-r.all
	r.asked, r.seen, r.all = now, failures, requests
	if r.why == nil {
		r.counted.Store(true)
	}
	if r.why != nil || fails > 0 {
		r.failed = now
	}
	switch {
	case r.why != nil && o == nil:
		r.begin(ctx, r.why, failures)
	case o == nil:
	case now.Sub(r.failed) >= quiet || r.failed.Before(now) && o.what == unreachable:
		r.outage.Store(nil)
		r.o.Log.LogAttrs(ctx, slog.LevelInfo, "Redis decides again at "+r.label, //nolint:sloglint // as the sentence
			slog.Uint64("failed_requests", failures-o.failures))
	default:
		r.goesOn(ctx, *o, r.why == nil && fails*mostlyDecides < asks)
	}
}

// goesOn logs an outage that goes on: that a better reason is known than that the store does not answer in time, and
// that a failure policy has decided for long.
func (r *remote) goesOn(ctx context.Context, o outage, mostlyDecides bool) {
	says := r.why != nil && !redisstore.TimedOut(r.why) && o.what != whatIs(r.why)
	if says {
		o.what, o.why = whatIs(r.why), r.why
	}
	now := time.Now()
	if mostlyDecides {
		o.policy = now
	}
	if now.Sub(o.policy) >= loud && now.Sub(o.loud) >= loudAgain {
		says, o.loud = true, now
	}
	r.outage.Store(&o)
	if says {
		r.say(ctx, &o)
	}
}

// whatToCheck says what may be wrong.
func (r *remote) whatToCheck(err error) string {
	switch {
	case redisstore.Answered(err) && strings.Contains(err.Error(), "NOPERM"):
		return "give Weir's user in Redis the right that the error names; docs/operate/redis.md#rights has all"
	case redisstore.Answered(err):
		return "what Redis answered: its memory, its role, the rights of its user"
	case redisstore.TimedOut(err):
		return fmt.Sprintf("does Redis hang, or is it slower or further away than --store-timeout=%s? "+
			"redis-cli --latency measures it; raise --store-timeout, and Envoy's timeout above it", r.timeout)
	case errors.Is(err, io.EOF):
		return "it closes connections: is it going down, does it speak TLS, or is it a proxy such as twemproxy, which " +
			"needs ?proxy=true in the URL?"
	default:
		return "is Redis up, and are its address, the network and TLS right?"
	}
}

// reached returns why the store does not decide, as far as is known; nil if it does.
func (r *remote) reached(ctx context.Context) error {
	r.check(ctx)
	if o := r.outage.Load(); o != nil {
		return o.why
	}
	return nil
}

// hasCounted returns why the store has not counted since the process started, nil if it has.
func (r *remote) hasCounted(ctx context.Context) error {
	if r.counted.Load() {
		return nil
	}
	if err := r.reached(ctx); !r.counted.Load() {
		return cmp.Or(err, ctx.Err())
	}
	return nil
}

// Failed notes a request that was decided without the servers that the error names.
func (s *Store) Failed(err error) {
	if len(s.remotes) == 0 {
		return
	}
	named := false
	redisstore.Failures(err, func(name, _ string, _ error) {
		for _, r := range s.remotes {
			if r.name == name {
				named = true
				r.fail(err)
			}
		}
	})
	if !named {
		s.remotes[0].fail(err)
	}
}

// watch looks after outages until ctx is done, and forgets what was counted locally during them: not before they have
// been over for a while, so that a store that comes and goes does not renew each limit's local share.
func (s *Store) watch(ctx context.Context) {
	var wait sync.WaitGroup
	for _, r := range s.remotes {
		wait.Go(func() { panics.Catch("ping of Redis", func() { r.check(ctx) }) })
	}
	wait.Wait()
	tick := time.NewTicker(pingAgain)
	defer tick.Stop()
	var last time.Time // when there was an outage; zero: what was counted during it is forgotten
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, r := range s.remotes {
			if r.outage.Load() != nil {
				last = time.Now()
				r.check(ctx)
			}
		}
		if last.IsZero() || time.Since(last) < quiet {
			continue
		}
		last = time.Time{}
		s.local.Clear()
	}
}
