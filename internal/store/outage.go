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
	"github.com/weir-ratelimit/weir/internal/sleep"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

const (
	// quiet is how long no request may fail before the outage of a reachable store ends. Local counts are cleared only
	// when no store has had an outage for this time.
	quiet = 5 * time.Second
	// loud is the time after which the log repeats that a failure policy decides; loudAgain is the interval after that.
	loud, loudAgain = time.Minute, 5 * time.Minute
	// If fewer than 1 in mostlyDecides requests fail, and the store responds in time, the store counts as deciding, not
	// the failure policy.
	mostlyDecides = 100
	// pingWait is the timeout of a ping while there is no outage; pingAgain is the interval of pings during an outage.
	pingWait  = 500 * time.Millisecond
	pingAgain = time.Second
)

// remote is a Redis with counters, --store or a --named-store, and the state of its outage.
type remote struct {
	store   *redisstore.Store
	name    string // name in limits; empty for --store
	label   string // URL without password, for logs
	timeout time.Duration
	o       *Options // for Effects, Requests and Log
	// ping returns an error if the store does not count; pingInTime has the timeout of requests.
	ping, pingInTime func(ctx context.Context) error

	failures atomic.Uint64          // number of requests decided without the store
	outage   atomic.Pointer[outage] // nil while the store decides. Only check changes or ends an outage
	counted  atomic.Bool            // whether the store has counted since the process started

	mu     sync.Mutex // guards the fields of check
	asked  time.Time
	why    error  // result of the last ping
	seen   uint64 // value of failures at the last ping
	all    uint64 // number of requests at the last ping
	failed time.Time

	hears  bool // receives the refunds of other processes; guarded by Store.hearing
	isDeaf bool // the log says that the refunds do not arrive; used only by heard
}

// outage is a time in which failure policies decide instead of a store. It is immutable.
type outage struct {
	what     string // one of the constants below
	why      error
	since    time.Time
	policy   time.Time // time since which more than a few requests were decided by failure policies
	loud     time.Time // time of the latest log line about the duration
	failures uint64    // remote.failures at the start
}

// Starts of the sentence about an outage.
const (
	unreachable   = "Redis unreachable at "
	doesNotCount  = "Redis returns errors at "
	doesNotAnswer = "Redis does not respond in time at "
	noPassword    = "No credentials for Redis at "
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

// fail records a request that was decided without the store. The first one begins an outage, unless the breaker failed
// the call, because that outage was logged before, perhaps with its end, and the breaker closes with its next probe.
func (r *remote) fail(err error) {
	failures := r.failures.Add(1)
	if r.outage.Load() == nil && !errors.Is(err, guard.ErrBreakerOpen) {
		r.begin(context.Background(), err, failures-1)
	}
}

// begin begins an outage and logs its sentence once. GET /status shows the same sentence.
func (r *remote) begin(ctx context.Context, err error, failures uint64) {
	o := &outage{what: whatIs(err), why: err, since: time.Now(), policy: time.Now(), failures: failures}
	if r.outage.CompareAndSwap(nil, o) {
		r.say(ctx, o)
	}
}

func (r *remote) say(ctx context.Context, o *outage) {
	//nolint:sloglint // one sentence, which operators can search for
	r.o.Log.LogAttrs(ctx, slog.LevelError, r.sentence(), slog.String("error", o.why.Error()),
		slog.String("check", r.whatToCheck(o.why)))
}

// Unasked reports whether a call of so many hits that failed with err surely ran no script, so that it may be repeated.
// A call of several hits may have run in part, because their keys may be in several servers.
func Unasked(err error, hits int) bool {
	if errors.Is(err, guard.ErrBreakerOpen) {
		return true
	}
	_, noConnection := errors.AsType[connectError](err)
	return hits == 1 && (noConnection || errors.Is(err, limiter.ErrShed))
}

func whatIs(err error) string {
	switch _, lacksPassword := errors.AsType[credentialsError](err); {
	case lacksPassword:
		return noPassword
	case redisstore.Answered(err):
		return doesNotCount
	case redisstore.TimedOut(err):
		return doesNotAnswer
	default:
		return unreachable
	}
}

// sentence says that the store does not decide, since when, and what its limits do. It is empty without an outage.
func (r *remote) sentence() string {
	o := r.outage.Load()
	if o == nil {
		return ""
	}
	return o.what + r.label + " since " + o.since.UTC().Format(time.RFC3339) + ": " + r.o.Effects(r.name)
}

// Outage returns the sentences of all stores that have an outage; it is empty if there is none.
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

// policyFor returns how long failure policies have decided instead of the store; 0 if the store decides.
func (r *remote) policyFor() time.Duration {
	if o := r.outage.Load(); o != nil {
		return time.Since(o.policy)
	}
	return 0
}

// check pings the store, unless it did a moment ago, and logs an outage that begins, continues or ends.
func (r *remote) check(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.asked.IsZero() && time.Since(r.asked) < pingAgain/2 || errors.Is(ctx.Err(), context.Canceled) {
		return // the process stops, or the caller no longer waits
	}
	o, ping := r.outage.Load(), r.ping
	if o != nil {
		ping = r.pingInTime
	}
	r.why = ping(context.WithoutCancel(ctx)) // the caller's deadline may have passed
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
		r.o.Log.LogAttrs(ctx, slog.LevelInfo, "Redis decides again at "+r.label, //nolint:sloglint // one sentence
			slog.Uint64("failed_requests", failures-o.failures))
	default:
		r.goesOn(ctx, *o, r.why == nil && fails*mostlyDecides < asks)
	}
}

// goesOn logs an outage whose reason is now known better than by a timeout, or that has lasted long.
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

// whatToCheck returns advice for the operator.
func (r *remote) whatToCheck(err error) string {
	switch {
	case whatIs(err) == noPassword:
		return "correct the option in the URL that the error names; run its program as Weir's user to see its output"
	case redisstore.Answered(err) && (strings.Contains(err.Error(), "NOPERM") || // the next two: in scripts
		strings.Contains(err.Error(), "can't run this command") || strings.Contains(err.Error(), "ACL failure")):
		return "grant Weir's user in Redis the missing right (the error names it, or it is one of " +
			"+get +mget +set +del +time); docs/operate/redis.md#rights lists all rights"
	case redisstore.Answered(err):
		return "the error that Redis returned: is its memory full, is it a replica, does its user lack rights?"
	case redisstore.TimedOut(err):
		return fmt.Sprintf("does Redis hang, or is it slower or further away than its timeout of %s? redis-cli --latency "+
			"measures it; raise --store-timeout or ?timeout= in the URL, and Envoy's timeout above it", r.timeout)
	case errors.Is(err, io.EOF):
		return "Redis closes connections: is it going down, does it speak TLS, or is it a proxy such as twemproxy, which " +
			"needs ?proxy=true in the URL?"
	default:
		return "is Redis up, and are its address, the network and TLS right?"
	}
}

// reached returns why the store does not decide, or nil.
func (r *remote) reached(ctx context.Context) error {
	r.check(ctx)
	if o := r.outage.Load(); o != nil {
		return o.why
	}
	return nil
}

// hasCounted returns an error if the store has not counted since the process started.
func (r *remote) hasCounted(ctx context.Context) error {
	if r.counted.Load() {
		return nil
	}
	if err := r.reached(ctx); !r.counted.Load() {
		return cmp.Or(err, ctx.Err())
	}
	return nil
}

// Failed records a request that was decided without the servers that err names.
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

// watch pings stores that have an outage, until ctx is done. Once all outages have been over for `quiet`, it clears the
// local counts. It waits for `quiet`, so that a store with short outages does not renew each limit's local share.
func (s *Store) watch(ctx context.Context) {
	var wait sync.WaitGroup
	for _, r := range s.remotes {
		wait.Go(func() { panics.Catch("ping of Redis", func() { r.check(ctx) }) })
	}
	wait.Wait()
	var last time.Time // time of the last outage; zero: local counts are cleared
	for sleep.For(ctx, pingAgain) == nil {
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
