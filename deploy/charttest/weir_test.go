package charttest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	service "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/weir-ratelimit/weir/internal/test/launch"
	"github.com/weir-ratelimit/weir/internal/test/podtest"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// TestOptions would notice arguments that Weir does not understand.
func TestProblemsAreFound(t *testing.T) {
	for arg, want := range map[string]string{"--memory-max-key=1": "unknown flag", "--drain-delay=x": "drain-delay"} {
		got := problemsOf(t, object{"args": []any{"serve", "--rules=/etc/weir/rules", arg}})
		if !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", arg, got, want)
		}
	}
}

// argumentProblems returns what Weir finds wrong with its arguments and variables, and says if its stop does not fit
// into the grace period.
func argumentProblems(t *testing.T, spec, container object) []string {
	t.Helper()
	if problems := problemsOf(t, container); problems != "" {
		return []string{problems}
	}
	grace, _ := spec["terminationGracePeriodSeconds"].(int)
	args := strings.Join(texts(container["args"]), "\n")
	least := seconds(t, args, "--drain-delay") + seconds(t, args, "--stop-timeout") + 15*time.Second
	if time.Duration(grace)*time.Second < least {
		return []string{fmt.Sprintf("terminationGracePeriodSeconds is %d, a stop may take %s", grace, least)}
	}
	return nil
}

// problemsOf returns what Weir finds wrong with the container's arguments and variables. So that Weir ends before it
// serves, it gets one wrong argument that the chart never sets: Weir lists all problems at once.
func problemsOf(t *testing.T, container object) string {
	t.Helper()
	const planted = "weir: --store-timeout: must be between 1ms and 10s, got 1m0s\nRun \"weir serve --help\" for its arguments and flags.\n"
	cmd := exec.Command(proctest.WeirBinary(t), append(texts(container["args"]), "--store-timeout=1m")...)
	cmd.Env = []string{}
	env, _ := container["env"].([]any)
	for _, v := range env {
		v, _ := v.(object)
		value, ok := v["value"].(string)
		if !ok {
			value = "redis://:secret@redis:6379/0" // of a Secret
		}
		cmd.Env = append(cmd.Env, fmt.Sprintf("%s=%s", v["name"], value))
	}
	out, err := cmd.CombinedOutput()
	if err == nil || strings.Contains(string(out), "secret") {
		t.Errorf("it starts, or a password is shown:\n%s", out)
	}
	const mounted = "weir: --rules: stat /etc/weir/rules: no such file or directory\n" // in a pod it is there
	return strings.TrimSuffix(strings.Replace(string(out), mounted, "", 1), planted)
}

// seconds is a flag's value; args has an argument a line.
func seconds(t *testing.T, args, flag string) time.Duration {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + flag + `[= ]+(\S+)`).FindStringSubmatch(args)
	if m == nil {
		t.Fatalf("no %s in\n%s", flag, args)
	}
	d, err := time.ParseDuration(m[1])
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Weir as the chart runs it stays below the memory limit while clients make up more keys than it may keep, of the two
// kinds of counters, which have budgets of their own.
func TestMemoryFits(t *testing.T) {
	text, _, err := render(t, "weir", "{}")
	if err != nil {
		t.Fatal(err)
	}
	_, container := pod(t, parse(t, text))
	if limit := podtest.At(container, "resources", "limits", "memory"); limit != "256Mi" {
		t.Fatalf("the memory limit is %v: this test is about 256Mi", limit)
	}
	const limit = 256 << 20
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(rules, []byte(`
domain: shop
descriptors:
  - {key: one, rate_limit: {algorithm: funnel, requests_per_unit: 100, unit: day}}
  - {key: two, rate_limit: {algorithm: sliding_log, requests_per_unit: 100, unit: day}}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	// Without a cgroup Weir does not know the limit: it would set GOMEMLIMIT to 90 % of it.
	t.Setenv("GOMEMLIMIT", strconv.Itoa(limit/10*9))
	most := 0
	args := []string{"--rules", rules}
	for _, arg := range texts(container["args"]) {
		if n, ok := strings.CutPrefix(arg, "--memory-max-counters="); ok {
			if most, err = strconv.Atoi(n); err != nil {
				t.Fatal(err)
			}
			args = append(args, arg)
		}
	}
	if most == 0 {
		t.Fatalf("no --memory-max-counters in %v", container["args"])
	}
	w := proctest.NewWeir(t, args...)
	w.Start()
	flood(t, w.GRPC, most*11/10)
	if err := launch.Ready(t.Context(), "http://"+w.HTTP+"/readyz"); err != nil {
		t.Error(err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.PID()))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(status)
	if m == nil {
		t.Fatalf("no VmHWM in\n%s", status)
	}
	peak, _ := strconv.Atoi(string(m[1]))
	t.Logf("%d counters of each kind at most: a peak of %d MiB", most, peak>>10)
	if peak<<10 > limit*9/10 {
		t.Errorf("%d counters of each kind take %d MiB, want less than nine tenths of 256 MiB", most, peak>>10)
	}
	if peak<<10 < limit/5 {
		t.Errorf("a peak of %d MiB: the flood has filled nothing", peak>>10)
	}
}

// flood has n keys of each kind counted.
func flood(t *testing.T, addr string, n int) {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // nothing is lost
	client := service.NewRateLimitServiceClient(conn)
	const batch, workers = 128, 8
	next := make(chan int)
	done := make(chan error, workers)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	for range workers {
		go func() {
			var err error
			for first := range next {
				req := &service.RateLimitRequest{Domain: "shop"}
				for i := first; i < first+batch/2; i++ {
					for _, key := range []string{"one", "two"} {
						req.Descriptors = append(req.Descriptors, &common.RateLimitDescriptor{
							Entries: []*common.RateLimitDescriptor_Entry{{Key: key, Value: strconv.Itoa(i)}},
						})
					}
				}
				if _, e := client.ShouldRateLimit(ctx, req); e != nil {
					err = e
				}
			}
			done <- err
		}()
	}
	for first := 0; first < n; first += batch / 2 {
		next <- first
	}
	close(next)
	for range workers {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
