//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/weir-ratelimit/weir/internal/test/longtest"
)

// firstLimit is the limit of generation 0. The limits in both files of a rule set are firstLimit plus the generation.
const firstLimit = 1_000_000

// A ConfigMap of two files is swapped 100 or 1,000 times under load, each time as soon as the set before is in force.
// No request fails, none is decided by a mixture of two sets, and none is decided by an older set than a request
// before it.
func TestManyReloads(t *testing.T) {
	generations := longtest.Pick(100, 1000)
	m := newConfigMap(t)
	s := startWeir(t, m.dir)
	swapper := observer{client: s.client(t)}
	others := make([]observer, 3)
	for i := range others {
		others[i].client = s.client(t)
		others[i].look(t) // connects
	}

	// The process grows to its working size in the first tenth, and must then keep it.
	reload := func(from, to int) {
		for g := from; g <= to && !t.Failed(); g++ {
			m.swap(t, g)
			deadline := time.Now().Add(10 * time.Second)
			for !t.Failed() && swapper.look(t) < g {
				if time.Now().After(deadline) {
					t.Fatalf("generation %d is not in force after 10s", g)
				}
				time.Sleep(time.Millisecond)
			}
		}
	}
	start := time.Now()
	end := load(t, others)
	reload(1, generations/10)
	end()
	before := s.vitals()
	end = load(t, others)
	reload(generations/10+1, generations)
	end()
	after := s.vitals()
	if t.Failed() {
		return // before all were loaded
	}

	requests := swapper.requests
	for _, o := range others {
		requests += o.requests
	}
	t.Logf("%d loads in %s, %d requests; goroutines %.0f and %.0f, resident %.1f MB and %.1f MB",
		generations, time.Since(start).Round(time.Millisecond), requests, before.goroutines, after.goroutines,
		before.resident/1e6, after.resident/1e6)
	if after.loads != float64(generations+1) || after.refused != 0 {
		t.Errorf("%.0f loads and %.0f refused, want %d and none", after.loads, after.refused, generations+1)
	}
	if after.goroutines > before.goroutines+10 {
		t.Errorf("%.0f goroutines, %.0f before: each load leaves some behind", after.goroutines, before.goroutines)
	}
	if grown := after.resident - before.resident; grown > 24e6 {
		t.Errorf("%.0f bytes are resident, %.0f more than before: each load leaves some behind", after.resident, grown)
	}
}

// load makes each client send requests until end is called.
func load(t *testing.T, clients []observer) (end func()) {
	t.Helper()
	var done atomic.Bool
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			pace := time.NewTicker(time.Millisecond)
			defer pace.Stop()
			for !done.Load() && !t.Failed() {
				clients[i].look(t)
				<-pace.C
			}
		})
	}
	end = func() {
		done.Store(true)
		wg.Wait()
	}
	t.Cleanup(end)
	return end
}

// observer is a client that remembers the last generation it was decided by.
type observer struct {
	client   pb.RateLimitServiceClient
	last     int
	requests int
}

// pairs asks for the rules a and b in turn, often, which leaves time for a swap in between.
var pairs = func() *pb.RateLimitRequest {
	req := &pb.RateLimitRequest{Domain: "shop"}
	for range 16 {
		for _, key := range []string{"a", "b"} {
			req.Descriptors = append(req.Descriptors, &common.RateLimitDescriptor{
				Entries: []*common.RateLimitDescriptor_Entry{{Key: key, Value: "x"}},
			})
		}
	}
	return req
}()

// look asks for the rules of both files at once and returns the generation of their set.
func (o *observer) look(t *testing.T) int {
	t.Helper()
	resp, err := o.client.ShouldRateLimit(t.Context(), pairs)
	o.requests++
	if err != nil {
		t.Errorf("request %d after generation %d: %v", o.requests, o.last, err)
		return o.last
	}
	var got []int
	for _, s := range resp.GetStatuses() {
		got = append(got, int(s.GetCurrentLimit().GetRequestsPerUnit())-firstLimit)
	}
	switch {
	case len(got) != len(pairs.GetDescriptors()):
		t.Errorf("request %d has %d statuses, want %d", o.requests, len(got), len(pairs.GetDescriptors()))
		return o.last
	case slices.Min(got) != slices.Max(got):
		t.Errorf("request %d is decided by a mixture of generations: %v", o.requests, got)
	case got[0] < o.last:
		t.Errorf("request %d is decided by generation %d, one before by %d", o.requests, got[0], o.last)
	}
	o.last = got[0]
	return o.last
}

// configMap is a folder as a kubelet keeps it: its files are links through ..data to the folder of the current set.
type configMap struct {
	dir  string
	live string // where ..data leads
}

// newConfigMap is one of generation 0.
func newConfigMap(t *testing.T) *configMap {
	t.Helper()
	m := &configMap{dir: t.TempDir()}
	m.swap(t, 0)
	for _, name := range []string{"a.yaml", "b.yaml"} {
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(m.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// swap replaces the generation atomically and removes the one before.
func (m *configMap) swap(t *testing.T, generation int) {
	t.Helper()
	next := "..set" + strconv.Itoa(generation)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Mkdir(filepath.Join(m.dir, next), 0o700))
	for _, key := range []string{"a", "b"} {
		var text strings.Builder
		fmt.Fprintf(&text, "domain: shop\ndescriptors:\n  - {key: %s, rate_limit: {requests_per_unit: %d, unit: second}}\n",
			key, firstLimit+generation)
		for i := range 100 { // so that a set which is never freed would show
			fmt.Fprintf(&text, "  - {key: %s-%d, rate_limit: {requests_per_unit: %d, unit: second}}\n", key, i, generation)
		}
		must(os.WriteFile(filepath.Join(m.dir, next, key+".yaml"), []byte(text.String()), 0o600))
	}
	must(os.Symlink(next, filepath.Join(m.dir, "..data_tmp")))
	must(os.Rename(filepath.Join(m.dir, "..data_tmp"), filepath.Join(m.dir, "..data")))
	if m.live != "" {
		must(os.RemoveAll(filepath.Join(m.dir, m.live)))
	}
	m.live = next
}

// vitals are what the process says of itself.
type vitals struct{ goroutines, resident, loads, refused float64 }

func (s *weir) vitals() vitals {
	return vitals{
		goroutines: s.Metric("go_goroutines"), resident: s.Metric("process_resident_memory_bytes"),
		loads: s.Metric(`weir_rules_loads_total{result="ok"}`), refused: s.Metric(`weir_rules_loads_total{result="refused"}`),
	}
}
