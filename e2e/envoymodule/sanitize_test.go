//go:build e2e

package envoymodule

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/internal/test/launch"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// limits denies much, holds requests, and answers with a body.
const limits = `
domain: shop
descriptors:
  - key: key
    value: k1
    rate_limit: {unit: second, requests_per_unit: 50, algorithm: leaky_queue, max_wait: 1s}
  - key: key
    value: k2
    rate_limit: {unit: year, requests_per_unit: 0}
    response: {headers: {X-Kettle: "no"}, body: "denied denied denied"}
  - key: key
    value: k3
    rate_limit: {unit: year, requests_per_unit: 0}
    response: {body: "%s"}
  - key: key
    value: k4
    rate_limit: {algorithm: concurrency, requests_per_unit: 1, lease: 1h}
  - key: key
    rate_limit: {unit: year, requests_per_unit: 20}
`

// TestMemory calls the module's hooks from a C program that stands for Envoy, both built to find memory faults: C that
// reads or writes what is freed, or beyond its end, and undefined behaviour. The long form builds Go's part so, too.
func TestMemory(t *testing.T) {
	t.Parallel()
	driver, library := sanitized(t)
	server := redistest.Start(t)
	path := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(path, []byte(fmt.Sprintf(limits, strings.Repeat("large ", 1000))), 0o600); err != nil {
		t.Fatal(err)
	}
	entries := byKeyAtBothEnds(`{"format": "` + leased + `", "is_negative_hits": true}`)
	route := `{"rate_limits": ` + entries + `}`
	for name, flags := range map[string][]string{
		"memory": {"--rules=" + path},
		"redis":  {"--rules=" + path, "--store=" + server.URL(), "--store-timeout=50ms", "--no-cached-denials"},
	} {
		t.Run(name, func(t *testing.T) {
			list := strings.Replace(config(append(flags, "--dynamic-metadata"), entries, withHeaders), "debug", "error", 1)
			cmd := exec.Command(driver, library, list, route, strconv.Itoa(casetest.Pick(10_000, 200_000)),
				strconv.Itoa(casetest.Pick(1, int(time.Now().Unix()))))
			// Go handles signals; what Go keeps of C's memory until the end is not a leak; and memory that nobody has
			// written is full of bytes that are no pointer.
			cmd.Env = append(os.Environ(), "ASAN_OPTIONS=detect_leaks=0:handle_segv=0:max_malloc_fill_size=1000000",
				"UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1")
			p, err := launch.Start("driver", cmd)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Kill()
			for hangs := name == "redis"; hangs; {
				server.Pause()
				time.Sleep(100 * time.Millisecond)
				server.Resume()
				select {
				case <-p.Exited():
					hangs = false
				case <-time.After(300 * time.Millisecond):
				}
			}
			code, err := p.Wait(casetest.Pick(2*patience, 20*patience))
			out := p.Output()
			if err != nil || code != 0 || strings.Contains(out, "panic") {
				t.Fatalf("exit code %d, %v:\n%s", code, err, out)
			}
			_, out, _ = strings.Cut(out, "passed ")
			var passed, denied, waited, aborted, late int
			if _, err := fmt.Sscanf(out, "%d denied %d waited %d aborted %d late %d", &passed, &denied, &waited, &aborted,
				&late); err != nil {
				t.Fatalf("%v:\n%s", err, out)
			}
			t.Logf("%d passed, %d denied, %d waited, %d aborted, %d events after the end of their stream", passed, denied,
				waited, aborted, late)
			if passed < 100 || denied < 100 || waited < 10 || name == "redis" && aborted < 10 {
				t.Error("the requests were not of all kinds")
			}
		})
	}
}
