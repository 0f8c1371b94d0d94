package mesh_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/internal/test/weirtest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// process is a running replica, as a store of requests of one hit.
type process struct {
	*weirtest.Process
	client pb.RateLimitServiceClient
	rule   string // that decides
}

func (p *process) Take(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	h := hits[0]
	res, err := p.client.ShouldRateLimit(
		ctx,
		&pb.RateLimitRequest{Domain: "mesh", Descriptors: []*common.RateLimitDescriptor{{
			Entries:    []*common.RateLimitDescriptor_Entry{{Key: p.rule, Value: h.Key}},
			HitsAddend: wrapperspb.UInt64(uint64(max(h.N, -h.N))), IsNegativeHits: h.N < 0,
		}}},
	)
	if err != nil {
		return err
	}
	out[0].Allowed = res.GetOverallCode() == pb.RateLimitResponse_OK
	return nil
}

// day is a rule whose limit stays used up.
const day, dayLimit = "day", 1000

// rules are those of the mode, with a rule for each limit of the scenes.
func rules(mode string) string {
	text := "domain: mesh\ndescriptors:\n"
	add := func(key, limit string) {
		if mode == leased {
			limit += ", consistency: leased"
		}
		text += fmt.Sprintf("  - {key: %s, rate_limit: {algorithm: funnel, %s}}\n", key, limit)
	}
	for _, limit := range smallLimits {
		add(perSecond(limit), fmt.Sprintf("requests_per_unit: %d, unit: second", limit))
	}
	add(day, fmt.Sprintf("requests_per_unit: %d, unit: day", dayLimit))
	return text
}

// perSecond is the rule with that limit.
func perSecond(limit int64) string { return fmt.Sprintf("second%d", limit) }

// startFleet serves the mode's rules by so many replicas on one Redis.
func startFleet(t *testing.T, redis *redistest.Server, mode string, replicas int) (fleet []*process) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, []byte(rules(mode)), 0o600); err != nil {
		t.Fatal(err)
	}
	for range replicas {
		p := &process{rule: day, Process: weirtest.New(t, "--rules", file, "--store", redis.URL(), "--store-timeout", "5s",
			"--known-denials="+strconv.FormatBool(mode != strict))}
		p.Launch()
		conn, err := grpc.NewClient(p.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		p.client = pb.NewRateLimitServiceClient(conn)
		fleet = append(fleet, p)
	}
	for _, p := range fleet {
		p.AwaitReady()
		if err := p.Take(t.Context(), []limiter.Hit{{Key: "warm", N: 1}}, make([]limiter.Decision, 1)); err != nil {
			t.Fatal(err)
		}
	}
	return fleet
}

// onRedis runs the scene on real replicas, each a process, and a real Redis. The second result is the mean time that
// a replica waited for Redis.
func (s scene) onRedis(t *testing.T, server *redistest.Server, fleet []*process) (o *outcome, wait time.Duration) {
	t.Helper()
	waited := func() (seconds, takes float64) {
		for _, p := range fleet {
			seconds += p.Metric(`weir_store_take_seconds_sum{store="(default)"}`)
			takes += p.Metric(`weir_store_take_seconds_count{store="(default)"}`)
		}
		return seconds, takes
	}
	var stores []limiter.Store
	for _, p := range fleet {
		p.rule = perSecond(s.Limit)
		stores = append(stores, p)
	}
	seconds, takes := waited()
	calls := scriptCalls(t, server)
	o = s.run(t, stores, nil)
	o.Calls = (scriptCalls(t, server) - calls) / s.Length.Seconds()
	secondsNow, takesNow := waited()
	return o, time.Duration((secondsNow - seconds) / (takesNow - takes) * float64(time.Second))
}

// scriptCalls is how many script calls the server has had.
func scriptCalls(t *testing.T, server *redistest.Server) float64 {
	t.Helper()
	_, stat, _ := strings.Cut(fmt.Sprint(redistest.Do(t, server, "info", "commandstats")), "cmdstat_evalsha:calls=")
	n, _, _ := strings.Cut(stat, ",")
	calls, err := strconv.ParseFloat(n, 64)
	if err != nil {
		t.Fatal(err)
	}
	return calls
}

// small is a mesh that both the model and this machine can run.
func small(mode string, limit int64) scene {
	return scene{Mode: mode, Replicas: 5, Shards: 1, Rate: 1000, Keys: 2, Limit: limit, Length: time.Second}
}

// Limits per second of keys that are asked for 500 times a second.
var smallLimits = []int64{40, 1000}

// punctual is how late requests are sent on average on a machine that has time for this.
const punctual = 2 * time.Millisecond

// beside runs a scene on real replicas, again if the machine had no time, and in the model with a network that is as
// slow as it was there.
func (s scene) beside(t *testing.T, server *redistest.Server, fleet []*process, c costs) (got, model *outcome) {
	t.Helper()
	var wait time.Duration
	for range 3 {
		redistest.Do(t, server, "flushall")
		if got, wait = s.onRedis(t, server, fleet); got.Late < punctual {
			break
		}
	}
	c.OneWay = max(c.OneWay, (wait-c.PerCall-c.PerHit)/2)
	return got, s.virtual(t, c)
}

// TestModelAgrees compares the model with five replicas on one Redis, where also a refund at one is seen by the
// others.
func TestModelAgrees(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			server := redistest.Start(t)
			fleet := startFleet(t, server, mode, 5)
			for _, limit := range smallLimits {
				got, model := small(mode, limit).beside(t, server, fleet, defaultCosts)
				agree(t, got, model)
			}
			t.Logf("%+v", stale(t, mode, fleet, 10))
		})
	}
}

func agree(t *testing.T, got, model *outcome) {
	t.Helper()
	t.Logf("calls per second: Redis %.0f, model %.0f; admitted: %.3f, %.3f; requests sent %s late",
		got.Calls, model.Calls, got.Admitted, model.Admitted, got.Late)
	busy := got.Late >= punctual // then requests come at once that should not: fewer calls, and other pauses
	if r := got.Calls / model.Calls; r > 2 || r < 0.5 && !busy {
		t.Errorf("replicas make %.2f times the calls of the model", r)
	}
	if d := got.Admitted - model.Admitted; d > 0.1 || d < -0.1 && !busy {
		t.Errorf("the model admits %.3f of what the limits let pass, replicas %.3f", model.Admitted, got.Admitted)
	}
	for what, o := range map[string]*outcome{"the model": model, "replicas": got} {
		onLease := float64(model.OnLease) / float64(model.Asked)
		if o == got && got.Scene.Mode == leased {
			onLease = float64(got.Scene.Replicas) / 10 // of a burst
		}
		if most := 1 + 1e-3 + onLease; o.Admitted > most {
			t.Errorf("%s: %.3f of what the limits let pass is admitted, want at most %.3f", what, o.Admitted, most)
		}
	}
}

// staleness is how long after a refund at one replica the others go on denying.
type staleness struct {
	Mode     string        `json:"mode"`
	Replicas int           `json:"replicas"`
	Refunds  int           `json:"refunds"`
	P50      time.Duration `json:"p50_ns"`
	P99      time.Duration `json:"p99_ns"`
	Max      time.Duration `json:"max_ns"`
}

// stale has a replica take a whole limit, the others learn that, and the first give it back; it measures from the
// answer to that until each of the others admits a request.
func stale(t *testing.T, mode string, fleet []*process, refunds int) staleness {
	t.Helper()
	for _, p := range fleet {
		p.rule = day
	}
	ask := func(p *process, key string, n int64) bool {
		var out [1]limiter.Decision
		if err := p.Take(t.Context(), []limiter.Hit{{Key: key, N: n}}, out[:]); err != nil {
			t.Errorf("ask for %d: %v", n, err)
			return true
		}
		return out[0].Allowed
	}
	var mu sync.Mutex
	var took []time.Duration
	for i := range refunds {
		key := "key" + strconv.Itoa(i)
		ask(fleet[0], key, dayLimit)
		for _, p := range fleet[1:] {
			for range 2 { // the second time it may know
				if ask(p, key, 1) {
					t.Fatal("more than the limit is admitted")
				}
			}
		}
		ask(fleet[0], key, -dayLimit)
		back := time.Now()
		var waiting sync.WaitGroup
		for _, p := range fleet[1:] {
			waiting.Go(func() {
				for !ask(p, key, 1) {
					if time.Since(back) > time.Minute {
						t.Error("a refund is not seen after a minute")
						return
					}
				}
				mu.Lock()
				defer mu.Unlock()
				took = append(took, time.Since(back))
			})
		}
		waiting.Wait()
	}
	slices.Sort(took)
	return staleness{
		Mode: mode, Replicas: len(fleet), Refunds: refunds,
		P50: took[len(took)/2], P99: took[int(math.Ceil(float64(len(took))*0.99))-1], Max: took[len(took)-1],
	}
}
