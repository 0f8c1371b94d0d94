//go:build e2e

package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

var figures = flag.Bool(
	"figures",
	false,
	"measure the table of docs/performance.md and print it: takes about two minutes",
)

// TestFigures measures every algorithm in both stores.
func TestFigures(t *testing.T) {
	if !*figures {
		t.Skip("measures, and proves nothing: make figures")
	}
	memory, inRedis, worst := measureMemory(t), measureRedis(t), measureWorst(t)
	steps, memoryRan, redisRan := histories(t, "limiter"), histories(t, "limiter/memstore"), histories(t,
		"limiter/redisstore")
	rows := []string{
		"| | memory: one hit | a key | Redis: script | CPU | a key | worst window: memory | Redis " +
			"| bound | histories: steps | memory | Redis |",
		"|---|---|---|---|---|---|---|---|---|---|---|---|",
	}
	for _, a := range limiter.AlgorithmNames() {
		m, r, w := memory[a], inRedis[a], worst[a]
		rows = append(
			rows,
			fmt.Sprintf(
				"| `%s` | %d ns | %d bytes | %.1f us | %.1f us | %d bytes | %d | %d | %d | %d | %d | %d |",
				a,
				m.perHit.Nanoseconds(),
				m.bytes,
				r.script,
				r.cpu,
				r.bytes,
				w["memory"],
				w["redis"],
				w["bound"],
				steps[a],
				memoryRan[a],
				redisRan[a],
			),
		)
	}
	fmt.Fprintln(os.Stdout, strings.Join(rows, "\n"))
}

// slow and fast are rules under which the hits below pass: of slow ones all are remembered while they are made, and
// fast ones let as much pass as the memory store can decide.
var (
	slow = eachAlgorithm("requests_per_unit: 100, unit: minute", "max_wait: 1h")
	fast = eachAlgorithm("requests_per_unit: 100, window: 100ms", "max_wait: 1h", "lease: 100ms")
)

const (
	figureKeys = 100_000
	hitsPerKey = 10
)

// figureKey is as long as a counter's of one client.
func figureKey(algorithm string, i int) string {
	return fmt.Sprintf("%s|shop|remote_address=10.%d.%d.%d", algorithm, i/65536, i/256%256, i%256)
}

type memoryFigures struct {
	perHit time.Duration
	bytes  int64 // of a key that was hit ten times
}

func measureMemory(t *testing.T) map[string]memoryFigures {
	t.Helper()
	out, quick := map[string]memoryFigures{}, policies(t, fast)
	for name, p := range policies(t, slow) {
		keys := make([]string, figureKeys)
		for i := range keys {
			keys[i] = figureKey(name, i)
		}
		before := heap()
		s, err := memstore.New(memstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		take := takeOver(t, s, p)
		for i := range hitsPerKey * figureKeys {
			take(keys[i%figureKeys])
		}
		f := memoryFigures{bytes: (heap() - before) / figureKeys}
		take = takeOver(t, s, quick[name])
		f.perHit = time.Duration(testing.Benchmark(func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				take(keys[i%figureKeys])
			}
		}).NsPerOp())
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		out[name] = f
	}
	return out
}

// takeOver decides single hits.
func takeOver(t *testing.T, s limiter.Store, p *limiter.Policy) func(key string) {
	hits, out := make([]limiter.Hit, 1), make([]limiter.Decision, 1)
	return func(key string) {
		hits[0] = limiter.Hit{Key: key, Policy: p, N: 1}
		if err := s.Take(context.Background(), hits, out); err != nil {
			t.Fatal(err)
		}
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

type redisFigures struct {
	script, cpu float64 // microseconds a call: of the script, and of the whole server
	bytes       int64   // of a key that was hit ten times, as MEMORY USAGE has it
}

func measureRedis(t *testing.T) map[string]redisFigures {
	t.Helper()
	server := redistest.Start(t)
	c := redis.NewClient(&redis.Options{Addr: server.Addr(), Protocol: 2})
	defer c.Close() //nolint:errcheck // only read from
	s, err := redisstore.New(redistest.Client(t, server.SocketURL(), 5*time.Second), redisstore.Options{Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]redisFigures{}
	for name, p := range policies(t, slow) {
		const keys, calls = 2_000, 2_000 * hitsPerKey
		take := takeOver(t, s, p)
		take(name) // loads the script
		if err := c.ConfigResetStat(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		before := cpu(t, c)
		for i := range calls {
			take(figureKey(name, i%keys))
		}
		used := cpu(t, c) - before
		perCall := info(t, c, "commandstats", `cmdstat_evalsha:.*usec_per_call=([0-9.]+)`)
		size, err := c.MemoryUsage(t.Context(), "weir:1:"+figureKey(name, 0)).Result()
		if err != nil {
			t.Fatal(err)
		}
		out[name] = redisFigures{script: perCall, cpu: used * 1e6 / calls, bytes: size}
	}
	return out
}

// cpu is how many seconds of CPU the server has used.
func cpu(t *testing.T, c *redis.Client) float64 {
	t.Helper()
	return info(t, c, "cpu", `used_cpu_user:([0-9.]+)`) + info(t, c, "cpu", `used_cpu_sys:([0-9.]+)`)
}

// info is a number of a section of INFO.
func info(t *testing.T, c *redis.Client, section, pattern string) float64 {
	t.Helper()
	text := c.Info(t.Context(), section).Val()
	found := regexp.MustCompile(pattern).FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("INFO %s has no %s:\n%s", section, pattern, text)
	}
	v, err := strconv.ParseFloat(found[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// measureWorst is the worst window of every algorithm, by store, under traffic that TestNeverAboveTheBound has, too.
func measureWorst(t *testing.T) map[string]map[string]int {
	t.Helper()
	rules := eachAlgorithm(boundedRate)
	limits, out := policies(t, rules), map[string]map[string]int{}
	for name, p := range limits {
		out[name] = map[string]int{"bound": int(p.Bound(1))}
	}
	for store, f := range startFleets(t, rules) {
		for name, passed := range f.hammer(t, 10*time.Second) {
			out[name][store] = worst(name, passed)
		}
	}
	return out
}

var (
	testName = regexp.MustCompile(`^=== (?:RUN|NAME|CONT) +(\S+)`)
	ran      = regexp.MustCompile(`^ +\S+: (?:\[rapid\] OK, passed (\d+) tests|(\d+) histories)`)
)

// histories runs a package's tests and counts what they say that they tried, by algorithm.
func histories(t *testing.T, pkg string) map[string]int {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-v", "../pkg/"+pkg).CombinedOutput()
	if err != nil {
		t.Fatalf("go test: %v\n%s", err, out)
	}
	counts, algorithm := map[string]int{}, ""
	for line := range strings.Lines(string(out)) {
		if name := testName.FindStringSubmatch(line); name != nil {
			algorithm = ""
			for part := range strings.SplitSeq(name[1], "/") {
				if slices.Contains(limiter.AlgorithmNames(), part) {
					algorithm = part
				}
			}
		}
		if n := ran.FindStringSubmatch(line); n != nil && algorithm != "" {
			count, err := strconv.Atoi(n[1] + n[2])
			if err != nil {
				t.Fatal(err)
			}
			counts[algorithm] += count
		}
	}
	return counts
}
