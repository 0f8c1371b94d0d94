//go:build e2e

package e2e

import (
	"fmt"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

const (
	cpuLimit = 10 // a second, and the burst
	cpuTime  = 4 * time.Second
)

// Limits hold when the CPU is short, for every algorithm: at worst Redis's limit and the process's own pass. Weir
// shares one core with busy loops.
func TestLimitsHoldWithoutCPU(t *testing.T) {
	algorithms := step.Names(limiter.Algorithms())
	rules := eachAlgorithm(fmt.Sprintf("requests_per_unit: %d, unit: second", cpuLimit), "lease: 1s")
	s := startWeir(t, ruleFile(t, rules), "--store", redistest.Start(t).URL())
	shareCore(t, s.PID())
	passed := make([]atomic.Int64, len(algorithms))
	var requests, failed atomic.Int64
	start := time.Now()
	var wait sync.WaitGroup
	for range 8 {
		client := fleet{s.client(t)}
		for i := range 10 * len(algorithms) {
			wait.Go(func() {
				a := i % len(algorithms)
				for time.Since(start) < cpuTime {
					ok, err := client.ask(t.Context(), 0, algorithms[a])
					requests.Add(1)
					switch {
					case err != nil:
						failed.Add(1)
					case ok:
						passed[a].Add(1)
					}
				}
			})
		}
	}
	wait.Wait()
	// Each of the two lets pass a burst and the limit in each second that has begun, and in the one before.
	most := 2 * cpuLimit * int64(time.Since(start)/time.Second+3)
	for i, a := range algorithms {
		if n := passed[i].Load(); n > most {
			t.Errorf("%s: %d requests pass in %s, want at most %d", a, n, time.Since(start), most)
		}
	}
	if failed.Load() > requests.Load()/100 {
		t.Errorf("%d of %d requests fail, want at most 1 %%", failed.Load(), requests.Load())
	}
	t.Logf("%d requests", requests.Load())
}

// shareCore has the process run on one core, beside four busy loops.
func shareCore(t *testing.T, pid int) {
	t.Helper()
	if out, err := exec.Command("taskset", "-a", "-c", "-p", "0", strconv.Itoa(pid)).CombinedOutput(); err != nil {
		t.Fatalf("taskset: %v\n%s", err, out)
	}
	for range 4 {
		busy := exec.Command("taskset", "-c", "0", "sh", "-c", "while :; do :; done")
		if err := busy.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = busy.Process.Kill()
			_ = busy.Wait()
		})
	}
}
