//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Limits hold when the CPU is short, for every algorithm: at worst Redis's limit and the process's own pass. Weir
// shares one core with busy loops, or has a CPU quota of 20 %.
func TestLimitsHoldWithoutCPU(t *testing.T) {
	shortages := map[string]func(*testing.T, int){"one core beside four busy loops": shareCore}
	if group := newQuota(t); group != "" {
		shortages["a CPU quota"] = func(t *testing.T, pid int) { writePid(t, filepath.Join(group, "cgroup.procs"), pid) }
	} else {
		t.Log("this machine has no cgroup for a CPU quota")
	}
	for name, shorten := range shortages {
		t.Run(name, func(t *testing.T) { limitsHold(t, shorten) })
	}
}

const (
	cpuLimit = 10 // a second, and the burst
	cpuTime  = 4 * time.Second
)

func limitsHold(t *testing.T, shorten func(*testing.T, int)) {
	algorithms := step.Names(limiter.Algorithms())
	var rules strings.Builder
	rules.WriteString("domain: shop\ndescriptors:\n")
	for _, a := range algorithms {
		window := "unit: second"
		if a == "concurrency" {
			window = "lease: 1s"
		}
		fmt.Fprintf(&rules, "  - {key: %s, rate_limit: {algorithm: %s, requests_per_unit: %d, %s}}\n", a, a, cpuLimit, window)
	}
	s := startWeir(t, ruleFile(t, rules.String()), "--store", redistest.Start(t).URL())
	shorten(t, s.PID())
	passed := make([]atomic.Int64, len(algorithms))
	var requests, failed atomic.Int64
	start := time.Now()
	var wait sync.WaitGroup
	for range 8 {
		client := s.client(t)
		for i := range 10 * len(algorithms) {
			wait.Go(func() {
				a := i % len(algorithms)
				for time.Since(start) < cpuTime {
					res, err := client.ShouldRateLimit(context.Background(), &pb.RateLimitRequest{
						Domain: "shop", Descriptors: []*commonpb.RateLimitDescriptor{{
							Entries: []*commonpb.RateLimitDescriptor_Entry{{Key: algorithms[a], Value: "x"}},
						}},
					})
					requests.Add(1)
					switch {
					case err != nil:
						failed.Add(1)
					case res.GetOverallCode() == pb.RateLimitResponse_OK:
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

// newQuota makes a cgroup whose processes together get a fifth of a core; "" if this machine has none to make.
func newQuota(t *testing.T) (group string) {
	t.Helper()
	for root, files := range map[string]map[string]string{
		"/sys/fs/cgroup/cpu": {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "20000"},
		"/sys/fs/cgroup":     {"cpu.max": "20000 100000"},
	} {
		group, err := os.MkdirTemp(root, "weir-test-") //nolint:usetesting // a cgroup
		if err != nil {
			continue
		}
		t.Cleanup(func() { _ = os.Remove(group) })
		for name, text := range files {
			err = os.WriteFile(filepath.Join(group, name), []byte(text), 0o600)
			if err != nil {
				break
			}
		}
		if err == nil {
			return group
		}
	}
	return ""
}

func writePid(t *testing.T, path string, pid int) {
	t.Helper()
	if err := os.WriteFile(path, []byte(strconv.Itoa(pid)), 0o600); err != nil {
		t.Fatal(err)
	}
}
