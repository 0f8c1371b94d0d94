package mesh_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/bench/figure"
	"github.com/weir-ratelimit/weir/internal/guard"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

var mesh = flag.Bool("mesh", false, "write the tables of docs/performance.md: takes two minutes")

// Modes of a replica.
const (
	strict  = "strict"
	denials = "cached denials"
	leased  = "cached denials and leases"
)

var modes = []string{strict, denials, leased}

// scene is a load on replicas.
type scene struct {
	Mode     string        `json:"mode"`
	Replicas int           `json:"replicas"`
	Shards   int           `json:"shards"`
	Rate     float64       `json:"rate"` // requests a second of all replicas
	Keys     int           `json:"keys"`
	Limit    int64         `json:"limit"` // of a key, per second, funnel with a burst of as many
	Length   time.Duration `json:"length_ns"`
}

// outcome is what came of it.
type outcome struct {
	Scene    scene         `json:"scene"`
	Calls    float64       `json:"calls_per_s"` // of a shard
	Busy     float64       `json:"busy"`        // share of a shard's time
	Asked    int           `json:"asked"`
	Admitted float64       `json:"admitted"` // to what the limits let pass, at most, in that time
	OnLease  int64         `json:"on_lease"` // most permits on lease at once
	Late     time.Duration `json:"late_ns"`  // mean time from when a request should be sent until it was
	P50      time.Duration `json:"p50_ns"`
	P99      time.Duration `json:"p99_ns"`
}

func (s scene) policy(t *testing.T) *limiter.Policy {
	t.Helper()
	policy, err := limiter.NewPolicy(limiter.Params{Algorithm: limiter.Funnel, Limit: s.Limit, Window: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return policy
}

// route returns where the mode has the limit counted.
func (s scene) route() any {
	if s.Mode == leased {
		return &descriptors.Placement{LeaseFor: descriptors.DefaultLeaseFor}
	}
	return nil
}

// guarded puts what the mode says before a store.
func (s scene) guarded(store limiter.Store) (limiter.Store, *guard.Leases) {
	if s.Mode == strict {
		return store, nil
	}
	d := guard.NewDenials(store, nil)
	d.Believe(true)
	if s.Mode == denials {
		return d, nil
	}
	l := guard.NewLeases(guard.LeasesOptions{Store: d})
	return l, l
}

// run loads the replicas' stores at the scene's rate, in open loop, and closes the leases.
func (s scene) run(t *testing.T, stores []limiter.Store, leases []*guard.Leases) *outcome {
	t.Helper()
	o := &outcome{Scene: s}
	policy, route := s.policy(t), s.route()
	var mu sync.Mutex
	var took []time.Duration
	var late time.Duration
	admitted := 0
	ask := func(store limiter.Store, key string, due time.Time) {
		out, start := make([]limiter.Decision, 1), time.Now()
		err := store.Take(t.Context(), []limiter.Hit{{Key: key, Policy: policy, N: 1, Route: route}}, out)
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			t.Errorf("Take: %v", err)
		}
		took, late = append(took, time.Since(start)), late+start.Sub(due)
		if out[0].Allowed {
			admitted++
		}
	}
	var running sync.WaitGroup
	start := time.Now()
	for i, store := range stores {
		running.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 1))
			mean := float64(len(stores)) / s.Rate * float64(time.Second)
			for at := rng.ExpFloat64() * mean; at < float64(s.Length); at += rng.ExpFloat64() * mean {
				due := start.Add(time.Duration(at))
				time.Sleep(time.Until(due))
				key := "key" + strconv.Itoa(rng.IntN(s.Keys))
				running.Go(func() { ask(store, key, due) })
			}
		})
	}
	stop := watch(o, leases)
	running.Wait()
	length := max(s.Length, time.Since(start)) // a busy machine takes longer
	stop()
	for _, l := range leases {
		if err := l.Close(); err != nil {
			t.Errorf("give back what is on lease: %v", err)
		}
	}
	slices.Sort(took)
	o.Asked, o.P50, o.P99 = len(took), took[len(took)/2], took[len(took)*99/100]
	o.Late = late / time.Duration(len(took))
	o.Admitted = float64(admitted) / (float64(s.Keys) * float64(s.Limit) * (1 + length.Seconds()))
	return o
}

// watch notes the most permits on lease until it is stopped.
func watch(o *outcome, leases []*guard.Leases) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for len(leases) > 0 {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			var sum int64
			for _, l := range leases {
				sum += l.Stats().Permits
			}
			o.OnLease = max(o.OnLease, sum)
		}
	})
	return func() { cancel(); running.Wait() }
}

// virtual runs the scene in the model.
func (s scene) virtual(t *testing.T, c costs) (o *outcome) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		shards := make([]*shard, s.Shards)
		for i := range shards {
			shards[i] = newShard(t, c)
		}
		stores := make([]limiter.Store, s.Replicas)
		var leases []*guard.Leases
		for i := range stores {
			lanes := make(cluster, s.Shards)
			for j := range lanes {
				lanes[j] = &lane{to: shards[j]}
			}
			guarded, l := s.guarded(lanes)
			if stores[i] = guarded; l != nil {
				leases = append(leases, l)
			}
		}
		o = s.run(t, stores, leases)
		for _, sh := range shards {
			o.Calls += float64(sh.calls) / s.Length.Seconds() / float64(s.Shards)
			o.Busy = max(o.Busy, sh.busy.Seconds()/s.Length.Seconds())
			if err := sh.store.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return o
}

// TestModelHoldsTheLimit: what leases give back and take ahead for several keys in one call reaches each key's own
// shard.
func TestModelHoldsTheLimit(t *testing.T) {
	s := scene{Mode: leased, Replicas: 10, Shards: 3, Rate: 10_000, Keys: 10, Limit: 200, Length: time.Second}
	o := s.virtual(t, defaultCosts)
	if o.Admitted > 1 || o.Admitted < 0.9 || o.OnLease == 0 {
		t.Errorf("%.3f of what the limits let pass is admitted, at most %d on lease: want nearly 1, and some", o.Admitted,
			o.OnLease)
	}
}

// defaultCosts stand in for measured ones.
var defaultCosts = costs{OneWay: 100 * time.Microsecond, PerCall: 28 * time.Microsecond, PerHit: 4 * time.Microsecond}

// measuredCosts reads what `make growth` measured: Redis's CPU per request with 1 and with 10 replicas, at different
// numbers of calls per request, is a line whose slope is the cost of a call.
func measuredCosts() (costs, error) {
	text, err := os.ReadFile("../results/growth.json")
	if err != nil {
		return costs{}, err
	}
	var r struct {
		Figures []struct {
			Name    string
			Columns []struct{ Values []float64 }
		}
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return costs{}, err
	}
	for _, f := range r.Figures {
		if f.Name != "replicas" || len(f.Columns) < 3 || len(f.Columns[1].Values) < 2 {
			continue
		}
		cpu, calls := f.Columns[1].Values, f.Columns[2].Values
		last := len(cpu) - 1
		perCall := (cpu[last] - cpu[0]) / (calls[last] - calls[0])
		perHit := cpu[0] - perCall*calls[0]
		if perCall <= 0 || perHit <= 0 {
			return costs{}, fmt.Errorf(
				"bench/results/growth.json: %.1f us a call and %.1f us a hit make no sense: make growth on a quieter machine",
				perCall, perHit)
		}
		us := func(v float64) time.Duration { return time.Duration(v * float64(time.Microsecond)) }
		return costs{OneWay: defaultCosts.OneWay, PerCall: us(perCall), PerHit: us(perHit)}, nil
	}
	return costs{}, errors.New("bench/results/growth.json has no replicas: make growth")
}

// calm is the share of a shard's time below which its queue stays short: the tables of docs/performance.md show
// what lies above.
const calm = 0.7

// capacity is a table of what a shard carries if no two requests share a call.
func (c costs) capacity() string {
	var b strings.Builder
	fmt.Fprintf(&b,
		"\n**What one Redis carries at %.0f %%, one call a request**\n\n| limits per request | requests/s |\n|---|---|\n",
		100*calm)
	for _, hits := range []int{1, 2, 4, 8, 16} {
		each := c.PerCall + time.Duration(hits)*c.PerHit
		fmt.Fprintf(&b, "| %d | %.0f |\n", hits, math.Floor(calm/each.Seconds()/100)*100)
	}
	return b.String()
}

// loads are loads with fewer shards than they need and with enough.
func loads() (scenes []scene) {
	for _, load := range []struct {
		rate   float64
		shards []int
	}{{10_000, []int{1}}, {25_000, []int{1, 2}}, {50_000, []int{2, 3, 4}}, {100_000, []int{4, 5, 6, 8}}} {
		for _, shards := range load.shards {
			scenes = append(scenes, scene{
				Mode: strict, Replicas: 1000, Shards: shards, Rate: load.rate, Keys: 1000,
				Limit: int64(load.rate / 500), Length: time.Second,
			})
		}
	}
	return scenes
}

// TestMesh writes the tables of docs/performance.md.
func TestMesh(t *testing.T) {
	if !*mesh {
		t.Skip("measures, and proves nothing: make simulate-mesh")
	}
	c, err := measuredCosts()
	if err != nil {
		t.Fatal(err)
	}
	var all results
	var b strings.Builder
	fmt.Fprintf(
		&b,
		"Redis takes %s for a call and %s for each hit in it (fitted to `make growth`); %s\n"+
			"one way between replica and shard (assumed).\n",
		c.PerCall,
		c.PerHit,
		c.OneWay,
	)
	b.WriteString(c.capacity())
	add := func(title string, scenes []scene) {
		fmt.Fprintf(&b,
			"\n**%s**\n\n| mode | replicas | shards | requests/s | keys "+
				"| calls/s per shard | busiest shard | admitted / limit | most permits on lease | p50, us | p99, us |\n%s\n",
			title, "|---|---|---|---|---|---|---|---|---|---|---|")
		for _, s := range scenes {
			o := s.virtual(t, c)
			all.Scenes = append(all.Scenes, o)
			fmt.Fprintf(&b, "| %s | %d | %d | %.0f | %d | %.0f | %.0f %% | %.3f | %d | %d | %d |\n", s.Mode, s.Replicas,
				s.Shards, s.Rate, s.Keys, o.Calls, 100*o.Busy, o.Admitted, o.OnLease, o.P50.Microseconds(), o.P99.Microseconds())
		}
	}
	add("Shards for a load: 1,000 replicas, many keys, each asked for half of its limit", loads())
	for _, p := range parts {
		var scenes []scene
		for _, mode := range modes {
			for _, shape := range p.shapes {
				scenes = append(scenes, scene{
					Mode: mode, Replicas: shape[0], Shards: shape[1], Rate: 50_000, Keys: p.keys, Limit: p.limit, Length: time.Second,
				})
			}
		}
		from := len(all.Scenes)
		add(p.title, scenes)
		if p.name != "" {
			b.WriteString(
				draw(t, "mesh-"+p.name+"-calls.svg", "Ten "+p.name+" keys: calls on each of 3 shards",
					"calls per second on a shard", all.Scenes[from:], func(o *outcome) float64 { return o.Calls }),
			)
		}
		if p.name == crowded {
			b.WriteString(
				draw(t, "mesh-"+p.name+"-admitted.svg", "Ten "+p.name+" keys: admitted / limit",
					"admitted / what the limits let pass", all.Scenes[from:], func(o *outcome) float64 { return o.Admitted }),
			)
		}
	}
	b.WriteString(
		"\n**The model beside real replicas** (five processes on one Redis, 500 requests a second for each of 2\nkeys)\n\n")
	b.WriteString(
		"| mode | limit per second | calls/s, Redis | model | admitted / limit, Redis | model |\n|---|---|---|---|---|---|\n")
	var staleness strings.Builder
	for _, mode := range modes {
		server := redistest.Start(t)
		fleet := startFleet(t, server, mode, 5)
		for _, limit := range smallLimits {
			got, model := small(mode, limit).beside(t, server, fleet, c)
			all.Scenes = append(all.Scenes, got, model)
			fmt.Fprintf(&b, "| %s | %d | %.0f | %.0f | %.3f | %.3f |\n", mode, limit, got.Calls, model.Calls, got.Admitted,
				model.Admitted)
		}
		s := stale(t, mode, fleet, 200)
		all.Staleness = append(all.Staleness, s)
		fmt.Fprintf(&staleness, "| %s | %d | %d | %d |\n", mode, s.P50.Microseconds(), s.P99.Microseconds(),
			s.Max.Microseconds())
	}
	b.WriteString(
		"\n**How long a refund is not seen** (five processes on one Redis, 200 refunds at one of them, until\n" +
			"each of the others admits a request again; with strict that is the time of a request)\n\n")
	b.WriteString("| mode | p50, us | p99, us | longest, us |\n|---|---|---|---|\n" + staleness.String())
	write(t, b.String(), &all)
}

// results are what is kept of a run.
type results struct {
	Scenes    []*outcome  `json:"scenes"`
	Staleness []staleness `json:"staleness"`
}

// crowded is the part whose admissions are drawn, too.
const crowded = "crowded"

// parts are loads of 50,000 requests a second, by numbers of replicas and of shards. Those with a name are drawn.
var parts = []struct {
	title  string
	name   string
	keys   int
	limit  int64
	shapes [][2]int
}{
	{"Many keys, each asked for half of its limit", "", 1000, 100, [][2]int{{10, 3}, {100, 3}, {1000, 3}, {1000, 6}}},
	{"Many keys, each asked for twice its limit", "", 1000, 25, [][2]int{{10, 3}, {100, 3}, {1000, 3}, {1000, 6}}},
	{
		"Ten flooded keys, each asked for 500 times its limit", "flooded", 10, 10,
		[][2]int{{10, 3}, {30, 3}, {100, 3}, {300, 3}, {1000, 3}},
	},
	{
		"Ten hot keys, each asked for half of its limit", "hot", 10, 10_000,
		[][2]int{{10, 3}, {30, 3}, {100, 3}, {300, 3}, {1000, 3}},
	},
	{
		"Ten crowded keys, each asked for five times its limit", crowded, 10, 1000,
		[][2]int{{10, 3}, {30, 3}, {100, 3}, {300, 3}, {1000, 3}},
	},
}

// draw writes a plot of a value of the outcomes, by the number of replicas for each mode, and returns its link.
func draw(t *testing.T, file, title, unit string, outcomes []*outcome, value func(o *outcome) float64) (link string) {
	t.Helper()
	p := &figure.Figure{Title: title, Size: "processes, 50,000 requests/s in all", Unit: unit}
	for i, mode := range modes {
		p.Add(mode, true, 3)
		for _, o := range outcomes {
			if o.Scene.Mode != mode {
				continue
			}
			if i == 0 {
				p.Sizes = append(p.Sizes, o.Scene.Replicas)
			}
			p.Put(i, value(o))
		}
	}
	if err := p.Draw("../../docs/img/" + file); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("\n![%s](img/%s)\n", title, file)
}

// write replaces the section of the document between its marks, and keeps the numbers.
func write(t *testing.T, text string, all *results) {
	t.Helper()
	err := errors.Join(figure.ReplaceBetween("../../docs/performance.md", "mesh", text),
		figure.WriteJSON("../results/mesh.json", all))
	if err != nil {
		t.Fatal(err)
	}
}
