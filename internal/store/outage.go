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
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

const (
	// loudAgain is how long until the next log line that says for how long a failure policy has decided.
	loudAgain = 5 * time.Minute
	// mostlyDecides is the share of the requests, 1 in so many, below which failures are not an outage that goes on, if
	// the store answers in time.
	mostlyDecides = 100
	// reachWait is how long a store may take to say that it is reachable, and reachAgain how often one that is not is
	// asked.
	reachWait  = 500 * time.Millisecond
	reachAgain = time.Second
)

// OutageTimes say when an outage is logged.
type OutageTimes struct {
	// Quiet is how long no request must have failed, and the store must answer in time, before an outage is over.
	Quiet time.Duration
	// Loud is how long a failure policy decides before a log line says so.
	Loud time.Duration
}

var defaultOutageTimes = OutageTimes{Quiet: 5 * time.Second, Loud: time.Minute}

// remote is a Redis that counts: --store, or a --named-store. It knows whether the Redis is reachable, and for how long
// requests have been decided by each rule's on_store_failure in its place.
type remote struct {
	store   *redisstore.Store
	name    string // as limits call it; empty for --store
	label   string // for logs: without a password
	timeout time.Duration
	effects func(name string) string
	log     *slog.Logger
	// ping says whether it counts; pingInTime whether it does so within the time that requests have.
	ping, pingInTime func(ctx context.Context) error

	failures atomic.Uint64         // requests that were decided without it
	failing  atomic.Bool           // an outage has been logged, and not yet its end
	since    atomic.Int64          // when the policy began to decide, in nanoseconds since the Unix epoch
	sample   atomic.Pointer[error] // an error since the latest look

	// Of watch alone.
	seen, logged uint64 // failures at the latest look, and at the end of the latest outage
	last         error
	loud         time.Time // of the latest line that says for how long

	said atomic.Pointer[outage] // what the log has said of this outage; nil: there is none

	mu     sync.Mutex
	looked time.Time // when reach asked
	away   string    // how it is away; empty: it is reachable, as far as is known
	why    error     // the last answer to reach

	counted atomic.Bool // it has counted since the process started
	hears   bool        // the refunds of other processes; guarded by Store.hearing
	isDeaf  bool        // the log has said that they are not heard; of the goroutine that hears them
}

func newRemote(name string, s *redisstore.Store, o *Options) *remote {
	return &remote{
		store: s, name: name, label: s.Label(), effects: o.Effects, timeout: s.Timeout(), log: o.Log,
		ping: s.Ping, pingInTime: s.PingInTime,
	}
}

// failed notes a request that was decided without the store. The first of an outage is logged.
func (r *remote) failed(err error) {
	r.failures.Add(1)
	if r.sample.Load() == nil {
		why := err // only a sample is kept, and allocated
		r.sample.Store(&why)
	}
	first := r.failing.CompareAndSwap(false, true)
	if first {
		r.since.Store(time.Now().UnixNano())
	}
	// What the breaker did not ask may be reachable again: that has been logged, and is not taken back.
	if first || r.said.Load() == nil && !errors.Is(err, guard.ErrNotAsked) {
		r.announce(context.Background(), slog.LevelError, err, false)
	}
}

// outage is a time in which a store does not decide.
type outage struct {
	what  string // what the store does
	since time.Time
}

// What the sentence about an outage says of the store.
const (
	unreachable   = "Redis unreachable at "
	doesNotCount  = "Redis does not count at "
	doesNotAnswer = "Redis does not answer in time at "
)

// announce has one line in the log for each outage: the sentence that GET /status has, too. With again, the line has a
// better reason than the one before.
func (r *remote) announce(ctx context.Context, level slog.Level, err error, again bool) {
	now := &outage{unreachable, time.Now()}
	switch {
	case redisstore.Answered(err):
		now.what = doesNotCount
	case redisstore.TimedOut(err):
		now.what = doesNotAnswer
	}
	if before := r.said.Load(); again && before != nil {
		now.since = before.since
		r.said.Store(now)
	} else if !r.said.CompareAndSwap(nil, now) {
		return
	}
	//nolint:sloglint // the sentence is one, also for operators who look for it
	r.log.LogAttrs(ctx, level, r.sentence(), slog.String("error", err.Error()), slog.String("check", r.check(err)))
}

// sentence says that the store does not decide, since when, and what its limits do. It is empty while there is no
// outage.
func (r *remote) sentence() string {
	o := r.said.Load()
	if o == nil {
		return ""
	}
	return o.what + r.label + " since " + o.since.UTC().Format(time.RFC3339) + ": " + r.effects(r.name)
}

// Outage returns the sentence about each store that does not decide now; it is empty if all do.
func (s *Store) Outage(ctx context.Context) string {
	var all []string
	for _, r := range s.remotes {
		r.reach(ctx)
		if sentence := r.sentence(); sentence != "" {
			all = append(all, sentence)
		}
	}
	return strings.Join(all, "; ")
}

// policyFor is how long on_store_failure has been deciding; 0 while the store does.
func (r *remote) policyFor() time.Duration {
	if !r.failing.Load() {
		return 0
	}
	return max(0, time.Duration(time.Now().UnixNano()-r.since.Load()))
}

// look logs the end of an outage, and one that goes on. requests is how many were answered since the latest look. It
// returns false while the outage goes on.
func (r *remote) look(ctx context.Context, requests uint64, loudAfter time.Duration) (over bool) {
	now := r.failures.Load()
	fresh := now - r.seen
	r.seen = now
	if why := r.sample.Swap(nil); why != nil {
		r.last = *why
	}
	if !r.failing.Load() {
		return true
	}
	answers := r.pingInTime(ctx) == nil
	switch {
	case answers && fresh == 0:
		r.log.LogAttrs(ctx, slog.LevelInfo, "store answers again",
			slog.String("store", r.label), slog.Uint64("failed_requests", now-r.logged))
		r.logged = now
		r.loud = time.Time{}
		r.failing.Store(false)
		if !r.isAway() {
			r.said.Store(nil)
		}
		return true
	case answers && fresh*mostlyDecides < requests:
		r.since.Store(time.Now().UnixNano())
	}
	if r.policyFor() >= loudAfter && (r.loud.IsZero() || time.Since(r.loud) >= loudAgain) {
		r.loud = time.Now()
		r.announce(ctx, slog.LevelError, r.last, true)
	}
	return false
}

// check says what to check.
func (r *remote) check(err error) string {
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

// reach asks whether the store counts, unless it was asked a moment ago, and logs when that changes, or when a better
// reason is known than that it does not answer in time.
func (r *remote) reach(ctx context.Context) (reachable bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.looked.IsZero() && time.Since(r.looked) < reachAgain/2 {
		return r.away == ""
	}
	if errors.Is(ctx.Err(), context.Canceled) { // the process stops
		return r.away == ""
	}
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), reachWait) // the caller's time may be over
	defer cancel()
	err := r.ping(asking)
	r.looked, r.why = time.Now(), err
	if err == nil {
		r.counted.Store(true)
	}
	away, level := "", slog.LevelWarn
	switch {
	case err == nil:
	case redisstore.Answered(err):
		away, level = doesNotCount, slog.LevelError
	default:
		away = unreachable
	}
	was, said := r.away, r.said.Load()
	r.away = away
	isVague := said != nil && said.what == doesNotAnswer
	better := away != "" && isVague && !redisstore.TimedOut(err) // it may say what to do, as a proxy's does
	switch {
	case away != "" && (away != was || better):
		r.announce(ctx, level, err, better || was != "")
	case away == "" && (was != "" || said != nil && said.what == unreachable):
		r.log.LogAttrs(ctx, slog.LevelInfo, "Redis reachable again at "+r.label) //nolint:sloglint // as operators look for it
		r.said.Store(nil)
	}
	return away == ""
}

// reached returns why the store does not count, as far as is known; nil if it does.
func (r *remote) reached(ctx context.Context) error {
	r.reach(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	return cmp.Or(r.why, ctx.Err())
}

// hasCounted returns why the store has not counted since the process started, nil if it has.
func (r *remote) hasCounted(ctx context.Context) error {
	if r.counted.Load() {
		return nil
	}
	if err := r.reached(ctx); !r.counted.Load() {
		return err
	}
	return nil
}

// isAway says whether the log has said that the store is not reachable.
func (r *remote) isAway() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.away != ""
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
				r.failed(err)
			}
		}
	})
	if !named {
		s.remotes[0].failed(err)
	}
}

// watch logs outages that go on, and their ends, until ctx is done, and forgets what was counted locally during them:
// not before, so that a store that comes and goes does not renew each limit's local share. It is here, and not on a
// request's way, that the lines of such a store are bounded.
func (s *Store) watch(ctx context.Context) {
	var wait sync.WaitGroup
	for _, r := range s.remotes {
		wait.Go(func() { panics.Catch("ping of Redis", func() { r.reach(ctx) }) })
	}
	wait.Wait()
	tick, reach := time.NewTicker(s.OutageTimes.Quiet), time.NewTicker(reachAgain)
	defer tick.Stop()
	defer reach.Stop()
	before, local := s.requests(), false
	for {
		select {
		case <-ctx.Done():
			return
		case <-reach.C:
			for _, r := range s.remotes {
				if r.isAway() || r.failing.Load() {
					r.reach(ctx)
				}
			}
			continue
		case <-tick.C:
		}
		now := s.requests()
		over := true
		for _, r := range s.remotes {
			over = r.look(ctx, now-before, s.OutageTimes.Loud) && over
		}
		if before = now; over && local {
			if err := s.local.drop(); err != nil {
				s.log.LogAttrs(ctx, slog.LevelWarn, "what was counted locally is not freed", slog.String("error", err.Error()))
			}
		}
		local = !over
	}
}

var _ limiter.Store = (*local)(nil)

// local is a memory store that is there while it is needed: it counts shares of limits while Redis does not.
type local struct {
	maxKeys int
	store   atomic.Pointer[memstore.Store]
}

func (l *local) Take(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	for {
		if s := l.store.Load(); s != nil {
			return s.Take(ctx, hits, out)
		}
		s, err := memstore.New(memstore.Options{MaxKeys: l.maxKeys}) //nolint:contextcheck // it outlives ctx
		if err != nil {
			return fmt.Errorf("%w: %w", limiter.ErrUnavailable, err)
		}
		if !l.store.CompareAndSwap(nil, s) {
			_ = s.Close() // another request was first
		}
	}
}

// drop forgets all that was counted.
func (l *local) drop() error {
	if s := l.store.Swap(nil); s != nil {
		return s.Close()
	}
	return nil
}
