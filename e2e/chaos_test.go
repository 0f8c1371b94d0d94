//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"math"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

var chaos = flag.Bool("chaos", false, "long faults, and the table of docs/operations.md: takes about four minutes")

// Of the campaign.
const (
	replicas    = 3
	rate        = 30 // a second, and at once, of the limits that are held to
	pace        = 10 * time.Millisecond
	warmUp      = 250 * time.Millisecond // until every limit is used up
	hung        = 2 * time.Second        // no answer: far above the store's timeout, since machines are busy
	late        = 20 * time.Millisecond  // Envoy's timeout
	promised    = time.Second            // from the store's return to its first decision
	liveBytes   = 8 << 20                // that a sidecar's heap may have grown by
	undisturbed = 0.2                    // of the calls about what is on other servers: busy machines are late
	more        = 3                      // goroutines, after a fault than before: the runtime's own come and go
)

// Every limit is asked through every sidecar. seen is denied only while the store does not decide.
const chaosRules = `
domain: shop
descriptors:
  - {key: seen, rate_limit: {algorithm: funnel, requests_per_unit: 1000000, unit: second, on_store_failure: deny}}
  - {key: deny, rate_limit: {algorithm: funnel, requests_per_unit: 30, unit: second, on_store_failure: deny}}
  - {key: local, rate_limit: {algorithm: funnel, requests_per_unit: 30, unit: second, on_store_failure: local}}
`

// keeps says what a fault does to counters in Redis, and so what may pass beyond a limit.
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

// rig is what faults are made in: a Redis, the sidecars that use it, and an Envoy in front of each.
type rig struct {
	t        *testing.T
	server   *redistest.Server // if it is one server
	redis    *redis.Client
	proxy    *faultyProxy // before it, if there is one
	clock    *steppedClock
	sentinel *redistest.Sentinel // if it is a master and its replica
	cluster  *redistest.Cluster  // if it is a cluster
	sidecars []*sidecar
	front    *front
	callers  []caller      // of each sidecar
	keys     []string      // that are asked about during this fault
	span     time.Duration // of this fault
}

// caller asks about a rule and a key. It says whether the request may pass, and whether that was answered.
type caller func(ctx context.Context, rule, key string) (passed, answered bool)

// startServerRig has the sidecars use one server.
func startServerRig(t *testing.T) *rig {
	t.Helper()
	r := startServer(t)
	r.startSidecars(r.server.URL())
	return r
}

// startNetworkRig has the sidecars use one server through a proxy that can fail.
func startNetworkRig(t *testing.T) *rig {
	t.Helper()
	r := startServer(t)
	r.proxy = startFaultyProxy(t, r.server.Addr())
	r.startSidecars("redis://" + r.proxy.addr + "/0")
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

// startSidecars starts them, and the Envoy.
func (r *rig) startSidecars(store string) {
	r.t.Helper()
	rules := ruleFile(r.t, chaosRules)
	for range replicas {
		r.sidecars = append(r.sidecars, startSidecar(r.t, rules, "--store", store, "--replicas", strconv.Itoa(replicas), "--pprof"))
	}
	r.front = startFront(r.t, r.sidecars)
	for i := range r.sidecars {
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
	sidecar     int
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

// start asks about each rule and each of the keys through each sidecar every 10 ms.
func (r *rig) start(keys ...string) *pressure {
	ctx, cancel := context.WithCancel(context.Background())
	l := &pressure{cancel: cancel}
	for i, ask := range r.callers {
		for _, rule := range chaosLimits {
			for _, key := range keys {
				l.wg.Go(func() {
					tick := time.NewTicker(pace)
					defer tick.Stop()
					for ctx.Err() == nil {
						a := asked{rule: rule, key: key, sidecar: i}
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
	ctx, cancel := context.WithTimeout(ctx, hung)
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

// outcome is a row of the table.
type outcome struct {
	name               string
	calls, errs, late  int     // errs had no answer
	quick              int     // of errs, for another reason than that Envoy did not wait longer
	envoy              counted // of all keys
	longest, recovered time.Duration
	median             time.Duration
	byPolicy           float64 // of the calls during the fault
	deny, local        int     // admitted beyond the limit
	twice              int     // admitted under local beyond twice the limit
	goroutines         [3]int  // before, at the end of the fault, after
	live               [2]int  // bytes of heap before and after, of the sidecar that has grown most
}

// run makes one fault under load and says what came of it, for each of the keys that were asked about: the first one is
// concerned by the fault, the others are not.
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
	calm := func(within time.Duration) {
		t.Helper()
		await(t, within, "decided by the store", func() bool { return l.decided(time.Now().Add(-10 * pace)) })
	}
	<-time.After(warmUp)
	calm(10 * time.Second)
	before := r.sizes()
	began := time.Now()
	heal := f.inject(r)
	<-time.After(r.span)
	during := r.sizes()
	heal()
	healed := time.Now()
	calm(10 * time.Second)
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

// measure takes the sizes of the sidecars.
func (o *outcome) measure(before, during, after []size) {
	for i := range before {
		o.goroutines[0] = max(o.goroutines[0], before[i].goroutines)
		o.goroutines[1] = max(o.goroutines[1], during[i].goroutines)
		o.goroutines[2] = max(o.goroutines[2], after[i].goroutines)
		if after[i].live-before[i].live > o.live[1]-o.live[0] || i == 0 {
			o.live = [2]int{before[i].live, after[i].live}
		}
	}
}

// read finds out what the calls have seen.
func (o *outcome) read(calls []asked, began, healed time.Time) {
	byRule, during, byPolicy, back := map[string][]asked{}, 0, 0, map[int]bool{}
	var times []time.Duration
	for _, a := range calls {
		took := a.done.Sub(a.began)
		times = append(times, took)
		o.calls++
		o.longest = max(o.longest, took)
		if !a.answered {
			o.errs++
			if took < late/2 { // its timers may be early by as much as it was busy
				o.quick++
			}
		}
		if took > late {
			o.late++
		}
		byRule[a.rule] = append(byRule[a.rule], a)
	}
	slices.Sort(times)
	o.median = times[len(times)/2]
	for _, a := range byRule["seen"] {
		switch {
		case a.began.After(began) && a.done.Before(healed):
			during++
			if a.answered && !a.passed {
				byPolicy++
			}
		case a.done.After(healed) && !back[a.sidecar]:
			back[a.sidecar] = a.passed
			if !a.passed {
				o.recovered = max(o.recovered, a.done.Sub(healed))
			}
		}
	}
	if during > 0 {
		o.byPolicy = float64(byPolicy) / float64(during)
	}
	o.deny, o.local, o.twice = beyond(byRule["deny"], 1), beyond(byRule["local"], 1), beyond(byRule["local"], 2)
}

// beyond is how many of the calls passed, in the worst period of any length, beyond times as much as the limit lets pass in it:
// what a funnel of that size and rate would have spilled.
func beyond(calls []asked, times float64) int {
	level, worst, last := 0.0, 0.0, time.Time{}
	for _, a := range calls {
		if a.passed {
			level = max(0, level-times*rate*a.done.Sub(last).Seconds()) + 1
			worst, last = max(worst, level), a.done
		}
	}
	return int(math.Ceil(max(0, worst-times*rate-1)))
}

// size is what a sidecar takes.
type size struct{ goroutines, live int }

var (
	goGoroutines = regexp.MustCompile(`(?m)^go_goroutines (\S+)$`)
	goHeap       = regexp.MustCompile(`(?m)^go_memstats_heap_alloc_bytes (\S+)$`)
)

// sizes collects the sidecars' garbage and asks what is left.
func (r *rig) sizes() []size {
	r.t.Helper()
	out := make([]size, len(r.sidecars))
	for i, s := range r.sidecars {
		s.Page("/debug/pprof/heap?gc=1")
		_, text := s.Page("/metrics")
		number := func(of *regexp.Regexp) int {
			v, err := strconv.ParseFloat(of.FindStringSubmatch(text)[1], 64)
			r.must(err)
			return int(v)
		}
		out[i] = size{number(goGoroutines), number(goHeap)}
	}
	http.DefaultClient.CloseIdleConnections()
	return out
}

// settled is sizes once no sidecar has noticeably more goroutines than before, or after three seconds.
func (r *rig) settled(before []size) []size {
	r.t.Helper()
	deadline := time.Now().Add(3 * time.Second)
	for {
		now := r.sizes()
		leaks := false
		for i := range now {
			leaks = leaks || now[i].goroutines > before[i].goroutines+more
		}
		if !leaks || time.Now().After(deadline) {
			return now
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// check holds the outcome against what is promised. The longest call shows for how long the machine itself may have
// stood still, and how much earlier than it was answered a call may have been decided.
func (o *outcome) check(t *testing.T, f fault) {
	t.Helper()
	most := func(what string, got, most int) {
		t.Helper()
		if got > most {
			t.Errorf("%s: %d, want at most %d", what, got, most)
		}
	}
	most("calls that took longer than a hung one may, ms", int(o.longest.Milliseconds()), int(hung.Milliseconds())-1)
	most("calls without an answer, other than Envoy's time-outs", o.quick, 0)
	most("median of the calls, ms, since a busy machine makes some late", int(o.median.Milliseconds()), int(late.Milliseconds()))
	most("recovered after, ms", int(o.recovered.Milliseconds()), int((promised + o.longest).Milliseconds()))
	most("goroutines", o.goroutines[2], o.goroutines[0]+more)
	most("goroutines during the fault", o.goroutines[1], o.goroutines[0]+40)
	most("heap", o.live[1], o.live[0]+liveBytes)
	if f.keeps == evicts {
		return
	}
	bound := int(math.Ceil(rate * o.longest.Seconds()))
	if f.keeps == none {
		bound += rate
	}
	most("admitted beyond the limit under deny", o.deny, bound)
	most("admitted beyond twice the limit under local", o.twice, bound)
}

// row is the outcome in the table.
func (o *outcome) row() string {
	ms := func(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }
	mb := func(bytes int) string { return fmt.Sprintf("%.1f", float64(bytes)/(1<<20)) }
	return fmt.Sprintf("| %s | %d | %d (%.2f %%) | %.1f %% | %s | %.0f %% | %d | %d | %s | %d, %d, %d | %s, %s |", o.name, o.calls,
		o.errs, 100*float64(o.errs)/float64(max(1, o.calls)), 100*float64(o.late)/float64(max(1, o.calls)), ms(o.longest), 100*o.byPolicy, o.deny, o.local, ms(o.recovered),
		o.goroutines[0], o.goroutines[1], o.goroutines[2], mb(o.live[0]), mb(o.live[1]))
}

const chaosHead = "| fault | calls | errors seen by Envoy | over 20 ms | longest | answered by policy | beyond the limit: `deny` | `local` | recovered after | " +
	"goroutines before, during, after | MB before, after |\n|---|---|---|---|---|---|---|---|---|---|---|"

// TestChaos breaks Redis, and what lies between it and three sidecars, in every way known, under load through Envoy.
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
							t.Errorf("%.0f %% of the calls about counters that the fault does not concern were answered by policy", 100*o.byPolicy)
						}
						errs += o.errs
					}
					if e := outcomes[0].envoy; e.errors != errs || e.allowed != 0 {
						t.Errorf("Envoy counted %d failed calls of %d and let %d of them pass, its clients saw %d", e.errors, e.asked, e.allowed, errs)
					}
				})
			}
		})
	}
	if *chaos {
		fmt.Fprintln(os.Stdout, strings.Join(rows, "\n"))
	}
}

// serverFaults are those of the server itself.
func serverFaults() []fault {
	faults := []fault{
		{"none", all, func(*rig) func() { return func() {} }},                                   // what the machine does by itself
		{"clock steps 1 h ahead", none, func(r *rig) func() { return r.stepClock(time.Hour) }},  // first: a restarted server has the machine's clock
		{"clock steps 1 s back", all, func(r *rig) func() { return r.stepClock(-time.Second) }}, // counters in use deny for as long
		{"kill -9, restart", none, func(r *rig) func() {
			r.server.Kill()
			return r.server.Restart
		}},
		{"SIGSTOP, SIGCONT", all, func(r *rig) func() {
			r.server.Pause()
			return r.server.Resume
		}},
		{"FLUSHALL", none, func(r *rig) func() {
			r.must(r.redis.FlushAll(r.t.Context()).Err())
			return func() {}
		}},
		{"SCRIPT FLUSH", all, func(r *rig) func() {
			r.must(r.redis.ScriptFlush(r.t.Context()).Err())
			return func() {}
		}},
		{"`maxmemory`, noeviction", all, func(r *rig) func() {
			r.config("maxmemory", "1")
			return func() { r.config("maxmemory", "0") }
		}},
		{"disk full (MISCONF)", all, (*rig).failToSave},
		{"LOADING", all, (*rig).reload},
		{"BUSY script", all, (*rig).busy},
	}
	policies := []string{"allkeys-lru", "volatile-ttl"}
	if *chaos {
		policies = []string{
			"allkeys-lru", "allkeys-lfu", "allkeys-random", "volatile-lru", "volatile-lfu", "volatile-random", "volatile-ttl",
		}
	}
	for _, policy := range policies {
		faults = append(faults, fault{"`maxmemory`, " + policy, evicts, func(r *rig) func() { return r.fill(policy) }})
	}
	return faults
}

// stepClock moves the server's clock. It stays so: there is nothing to heal.
func (r *rig) stepClock(by time.Duration) func() {
	r.clock.step(by)
	now, err := r.redis.Time(r.t.Context()).Result()
	r.must(err)
	if off := time.Until(now).Round(time.Second); off != r.clock.off {
		r.t.Fatalf("the server's clock is %s ahead, want %s", off, r.clock.off)
	}
	return func() {}
}

// failToSave has the server's snapshots fail as they do on a full disk: it then refuses to write.
func (r *rig) failToSave() func() {
	ctx := r.t.Context()
	dir, file := r.redis.ConfigGet(ctx, "dir").Val()["dir"], r.redis.ConfigGet(ctx, "dbfilename").Val()["dbfilename"]
	path := dir + "/" + file
	save := func(want string) {
		r.t.Helper()
		await(r.t, 5*time.Second, "a snapshot that is "+want, func() bool {
			_ = r.redis.BgSave(ctx).Err() // one may be under way
			return strings.Contains(r.redis.Info(ctx, "persistence").Val(), "rdb_last_bgsave_status:"+want)
		})
	}
	_ = os.Remove(path)
	r.must(os.Mkdir(path, 0o700)) // which no file can be renamed to
	r.config("save", "3600 1000000")
	save("err")
	return func() {
		r.must(os.Remove(path))
		save("ok")
		r.config("save", "")
	}
}

// reload has the server load its data for as long as the fault is to last, and answer LOADING meanwhile.
func (r *rig) reload() func() {
	ctx := r.t.Context()
	keys := int(r.span / time.Millisecond)
	r.must(r.redis.Do(ctx, "debug", "populate", keys, "filler", 2048).Err())
	r.config("key-load-delay", "1000")
	r.config("loading-process-events-interval-bytes", "1024")
	ended := make(chan error, 1)
	go func() { ended <- r.redis.Do(ctx, "debug", "reload").Err() }()
	return func() {
		r.must(<-ended)
		r.config("key-load-delay", "0")
	}
}

// busy runs a script that does not end: the server first hangs, and then answers BUSY.
func (r *rig) busy() func() {
	ctx := r.t.Context()
	r.config("busy-reply-threshold", "100")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = r.redis.Eval(ctx, "while true do end", nil).Err() // it is killed
	}()
	return func() {
		r.must(r.redis.ScriptKill(ctx).Err())
		<-ended
	}
}

// fill writes keys until the server has to evict some, and goes on.
func (r *rig) fill(policy string) func() {
	ctx, cancel := context.WithCancel(r.t.Context())
	used := info(r.t, r.redis, "memory", `used_memory:([0-9]+)`)
	r.config("maxmemory-policy", policy)
	r.config("maxmemory", strconv.Itoa(int(used)+1<<20))
	ended := make(chan struct{})
	value := strings.Repeat("x", 1024)
	go func() {
		defer close(ended)
		for i := 0; ctx.Err() == nil; i++ {
			pipe := r.redis.Pipeline()
			for j := range 20 {
				pipe.Set(ctx, fmt.Sprintf("filler:%d", 20*i+j), value, time.Hour)
			}
			_, _ = pipe.Exec(ctx) // a server that has no room refuses
			<-time.After(pace)
		}
	}()
	return func() {
		cancel()
		<-ended
		r.config("maxmemory", "0")
		r.config("maxmemory-policy", "noeviction")
	}
}

// overGRPC asks without an Envoy.
func overGRPC(c pb.RateLimitServiceClient) caller {
	return func(ctx context.Context, rule, key string) (passed, answered bool) {
		res, err := c.ShouldRateLimit(ctx, question(rule, key))
		return res.GetOverallCode() == pb.RateLimitResponse_OK, err == nil
	}
}

// A start without Redis serves by policy, says on /readyz why, and counts within a second of Redis's coming.
func TestStartWithoutRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	server.Kill()
	s := newSidecar(t, ruleFile(t, chaosRules), "--store", server.URL())
	s.Launch()
	await(t, 10*time.Second, "alive", func() bool {
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
	await(t, 10*time.Second, "decided by the store", func() bool { return l.decided(time.Now().Add(-10 * pace)) })
	await(t, 10*time.Second, "ready", func() bool { return s.Ready(t.Context()) == nil }) // it asks Redis once a second
	var o outcome
	o.read(l.stop(), time.Time{}, back)
	if o.errs > 0 || o.recovered > promised || o.byPolicy == 0 {
		t.Errorf("%d calls failed, it counts %s after Redis came, %.0f %% were answered by policy before; want none, at most %s, and more than 0 %%",
			o.errs, o.recovered, 100*o.byPolicy, promised)
	}
	t.Logf("%d calls, the longest took %s; Redis decides %s after it came", o.calls, o.longest, cmp.Or(o.recovered, 0))
}
