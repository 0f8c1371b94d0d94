//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

var chaos = flag.Bool("chaos", false, "long faults, and the table of docs/operate/failure.md: takes about four minutes")

// Of the campaign.
const (
	replicas    = 3
	rate        = 30                     // a second, and at once, of the limits that are held to
	warmUp      = 300 * time.Millisecond // until every limit is used up
	promised    = time.Second            // from the store's return to its first decision
	liveBytes   = 8 << 20                // that a process's heap may have grown by
	undisturbed = 0.5                    // of the calls about what is on other servers: busy machines are late
	more        = 3                      // goroutines, after a fault than before: the runtime's own come and go
)

// stretched returns a time of the faults, or a timeout. Without -chaos it is ten times as long: on a busy machine a
// Redis that is well takes longer than the 15 ms of a store, and all of the calls would count as failures.
func stretched(d time.Duration) time.Duration {
	if *chaos {
		return d
	}
	return 10 * d
}

// pace is how often each limit is asked about through each process.
func pace() time.Duration {
	if *chaos {
		return 10 * time.Millisecond
	}
	return 20 * time.Millisecond
}

// storeTimeout is the processes', and late is Envoy's: by default both are as here with -chaos. After hung there is no
// answer: it is far above both.
func storeTimeout() time.Duration { return stretched(15 * time.Millisecond) }
func late() time.Duration         { return stretched(20 * time.Millisecond) }
func hung() time.Duration         { return stretched(2 * time.Second) }

// Every limit is asked through every process. The limit "seen" denies only while the store does not decide.
const chaosRules = `
domain: shop
descriptors:
  - {key: seen, rate_limit: {algorithm: funnel, requests_per_unit: 1000000, unit: second, on_store_failure: deny}}
  - {key: deny, rate_limit: {algorithm: funnel, requests_per_unit: 30, unit: second, on_store_failure: deny}}
  - {key: local, rate_limit: {algorithm: funnel, requests_per_unit: 30, unit: second, on_store_failure: local}}
`

// keeps is the part of the counters in Redis that survives a fault. It bounds the excess over a limit.
type keeps int

const (
	all    keeps = iota // nothing is lost
	none                // all is lost once: a limit's worth more
	evicts              // counters are forgotten again and again: no bound
)

// fault is one entry of the campaign.
type fault struct {
	name  string
	keeps keeps
	// inject begins the fault, and returns how it ends: when that returns, the store is back.
	inject func(*rig) (heal func())
}

// chaosLimits are the keys of the rules.
var chaosLimits = []string{"seen", "deny", "local"}

// rig is the setup of a fault: a Redis, the processes that use it, and an Envoy in front of each process.
type rig struct {
	t        *testing.T
	server   *redistest.Server // if it is one server
	redis    *redis.Client
	proxy    *faultyProxy // before it, if there is one
	clock    *steppedClock
	sentinel *redistest.Sentinel // if it is a master and its replica
	cluster  *redistest.Cluster  // if it is a cluster
	weirs    []*weir
	front    *front
	callers  []caller      // of each process
	keys     []string      // that are asked about during this fault
	span     time.Duration // of this fault
}

// caller asks about a rule and a key. It says whether the request may pass, and whether that was answered.
type caller func(ctx context.Context, rule, key string) (passed, answered bool)

// startServerRig has the processes use one server.
func startServerRig(t *testing.T) *rig {
	t.Helper()
	r := startServer(t)
	r.startWeirs(r.server.URL())
	return r
}

// startNetworkRig has the processes use one server through a proxy that can fail.
func startNetworkRig(t *testing.T) *rig {
	t.Helper()
	r := startServer(t)
	r.proxy = startFaultyProxy(t, r.server.Addr())
	r.startWeirs("redis://" + r.proxy.addr + "/0")
	return r
}

func startServer(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t}
	r.clock = newSteppedClock(t)
	r.server = redistest.Start(t, "--enable-debug-command", "yes")
	r.clock.notFor(t)
	r.redis = redis.NewClient(&redis.Options{Addr: r.server.Addr(), Protocol: 2, ReadTimeout: time.Minute, MaxRetries: -1})
	t.Cleanup(func() { _ = r.redis.Close() })
	return r
}

// startWeirs starts them, and the Envoy.
func (r *rig) startWeirs(store string) {
	r.t.Helper()
	rules := ruleFile(r.t, chaosRules)
	for range replicas {
		r.weirs = append(r.weirs,
			startWeir(r.t, rules, "--store", store, "--store-timeout", storeTimeout().String(),
				"--fallback-replicas", strconv.Itoa(replicas), "--pprof"))
	}
	r.front = startFront(r.t, r.weirs)
	for i := range r.weirs {
		r.callers = append(r.callers, r.front.caller(i))
	}
}

// must fails the test, for commands that prepare or end a fault.
func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) config(name, value string) {
	r.t.Helper()
	r.must(r.redis.ConfigSet(r.t.Context(), name, value).Err())
}

// asked is one call of a client.
type asked struct {
	rule, key   string
	weir        int
	began, done time.Time
	passed      bool
	answered    bool
}

// pressure is calls that go on until stop.
type pressure struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup
	mu     sync.Mutex
	calls  []asked
}

// start asks about each rule and each of the keys through each process at that pace.
func (r *rig) start(keys ...string) *pressure {
	ctx, cancel := context.WithCancel(context.Background())
	l := &pressure{cancel: cancel}
	for i, ask := range r.callers {
		for _, rule := range chaosLimits {
			for _, key := range keys {
				l.wg.Go(func() {
					tick := time.NewTicker(pace())
					defer tick.Stop()
					for ctx.Err() == nil {
						a := asked{rule: rule, key: key, weir: i}
						a.ask(context.WithoutCancel(ctx), ask) // the last one is answered, too
						l.add(a)
						<-tick.C
					}
				})
			}
		}
	}
	r.t.Cleanup(func() { l.stop() })
	return l
}

func (a *asked) ask(ctx context.Context, ask caller) {
	ctx, cancel := context.WithTimeout(ctx, hung())
	defer cancel()
	a.began = time.Now()
	a.passed, a.answered = ask(ctx, a.rule, a.key)
	a.done = time.Now()
}

func (l *pressure) add(a asked) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls = append(l.calls, a)
}

// stop ends the load and returns its calls, in the order in which they were answered.
func (l *pressure) stop() []asked {
	l.cancel()
	l.wg.Wait()
	slices.SortFunc(l.calls, func(a, b asked) int { return a.done.Compare(b.done) })
	return l.calls
}

// decided says whether the store has decided every call since then, of which there are some.
func (l *pressure) decided(since time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, a := range slices.Backward(l.calls) {
		switch {
		case a.done.Before(since):
			return n > 0
		case a.rule != "seen":
		case !a.passed:
			return false
		default:
			n++
		}
	}
	return n > 0
}

// run makes one fault under load and returns an outcome for each key. The fault concerns the first key only.
func (r *rig) run(f fault) []outcome {
	t := r.t
	t.Helper()
	r.span = brief
	if *chaos {
		r.span = 5 * time.Second
	}
	r.keys = r.keysFor(f)
	counted := r.front.counted()
	l := r.start(r.keys...)
	calm := func() {
		t.Helper()
		proctest.Eventually(t, "decided by the store", func() bool { return l.decided(time.Now().Add(-10 * pace())) })
	}
	<-time.After(warmUp)
	calm()
	before := r.sizes()
	began := time.Now()
	heal := f.inject(r)
	<-time.After(r.span)
	during := r.sizes()
	heal()
	healed := time.Now()
	calm()
	after := r.settled(before)
	calls := l.stop()
	seen := r.front.counted().since(counted)

	var out []outcome
	for i, key := range r.keys {
		o := outcome{name: f.name, envoy: seen}
		if i > 0 {
			o.name += ", limits on the other masters"
		}
		o.read(slices.DeleteFunc(slices.Clone(calls), func(a asked) bool { return a.key != key }), began, healed)
		o.measure(before, during, after)
		out = append(out, o)
	}
	if r.redis != nil {
		r.must(r.redis.FlushAll(t.Context()).Err()) // what faults have left
	}
	return out
}

// TestChaos breaks Redis, and what lies between it and three processes, in every way known, under load through Envoy.
func TestChaos(t *testing.T) {
	rows := []string{chaosHead}
	for _, part := range []struct {
		name   string
		start  func(t *testing.T) *rig
		faults []fault
	}{
		{"server", startServerRig, serverFaults()},
		{"network", startNetworkRig, networkFaults()},
		{"sentinel", startSentinelRig, sentinelFaults()},
		{"cluster", startClusterRig, clusterFaults()},
	} {
		t.Run(part.name, func(t *testing.T) {
			r := part.start(t)
			for _, f := range part.faults {
				t.Run(f.name, func(t *testing.T) {
					r := *r
					r.t = t
					outcomes := r.run(f)
					errs := 0
					for i, o := range outcomes {
						rows = append(rows, o.row())
						t.Log(o.row())
						o.check(t, f)
						if i > 0 && o.byPolicy > undisturbed {
							t.Errorf("%.0f %% of the calls about counters that the fault does not concern were answered by policy",
								100*o.byPolicy)
						}
						errs += o.errs
					}
					if e := outcomes[0].envoy; e.errors != errs || e.allowed != 0 {
						t.Errorf("Envoy counted %d failed calls of %d and let %d of them pass, its clients saw %d", e.errors, e.asked,
							e.allowed, errs)
					}
				})
			}
		})
	}
	if *chaos {
		fmt.Fprintln(os.Stdout, strings.Join(rows, "\n"))
	}
}

// overGRPC asks without an Envoy.
func overGRPC(c pb.RateLimitServiceClient) caller {
	return func(ctx context.Context, rule, key string) (passed, answered bool) {
		res, err := c.ShouldRateLimit(ctx, question(rule, key))
		return res.GetOverallCode() == pb.RateLimitResponse_OK, err == nil
	}
}

// Without Redis a process starts, applies the failure policy, shows the reason on /readyz, and counts soon after the
// start of Redis.
func TestStartWithoutRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	server.Kill()
	s := newWeir(t, ruleFile(t, chaosRules), "--store", server.URL(), "--store-timeout", storeTimeout().String())
	s.Launch()
	proctest.Eventually(t, "alive", func() bool {
		res, err := http.Get("http://" + s.HTTP + "/healthz")
		return err == nil && res.Body.Close() == nil
	})
	r := &rig{t: t, callers: []caller{overGRPC(s.client(t))}}
	l := r.start("started")
	<-time.After(500 * time.Millisecond)
	status, text := s.Page("/readyz")
	if !strings.HasPrefix(status, "503") || !strings.Contains(text, "connection refused") {
		t.Errorf("/readyz without Redis: %s %s, want 503 and the reason", status, text)
	}
	server.Restart()
	back := time.Now()
	proctest.Eventually(t, "decided by the store", func() bool { return l.decided(time.Now().Add(-10 * pace())) })
	proctest.Eventually(t, "ready", func() bool { return s.Ready(t.Context()) == nil }) // it asks Redis once a second
	var o outcome
	o.read(l.stop(), time.Time{}, back)
	if o.errs > 0 || o.recovered > o.recoveryBound() || o.byPolicy == 0 {
		t.Errorf(
			"%d calls failed, want none; it counts %s after Redis came, want at most %s; "+
				"before, %.0f %% were answered by the failure policy, want more than 0 %%",
			o.errs, o.recovered, o.recoveryBound(), 100*o.byPolicy)
	}
	t.Logf("%d calls, the longest took %s; Redis decides %s after it came", o.calls, o.longest, cmp.Or(o.recovered, 0))
}
