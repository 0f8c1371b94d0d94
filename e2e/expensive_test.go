//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Bodies of POST /json with many empty descriptors or entries delay no honest request by gRPC, and take no memory.
func TestExpensiveJSON(t *testing.T) {
	s := startWeir(t, ruleFile(t, "domain: shop\ndescriptors: [{key: client, rate_limit: {requests_per_unit: 1000000, unit: day}}]\n"),
		"--http-json", "--max-descriptors", "2048", "--max-counters", "4096")
	honest := s.client(t)
	p99 := func(n int) time.Duration {
		took := make([]time.Duration, n)
		for i := range took {
			start := time.Now()
			if _, err := honest.ShouldRateLimit(t.Context(), question("client", "honest")); err != nil {
				t.Errorf("an honest client: %v", err)
			}
			took[i] = time.Since(start)
		}
		slices.Sort(took)
		return took[n*99/100]
	}
	p99(100)
	quiet, before := p99(1000), s.memory(t, "VmRSS")
	descriptors := `{"domain":"shop","descriptors":[` + strings.Repeat("{},", 256<<10/3-20) + "{}]}"
	entries := `{"domain":"shop","descriptors":[{"entries":[` + strings.Repeat("{},", 256<<10/3-30) + "{}]}]}"
	done := make(chan struct{})
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				resp, err := http.Post("http://"+s.HTTP+"/json", "application/json",
					bytes.NewReader([]byte([]string{descriptors, entries}[i%2])))
				if err != nil {
					t.Error(err)
					return
				}
				text, _ := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				if resp.StatusCode != http.StatusBadRequest || !strings.Contains(string(text), "must") {
					t.Errorf("%s: %.200s", resp.Status, text)
				}
			}
		})
	}
	loaded := p99(300)
	close(done)
	all.Wait()
	most := s.memory(t, "VmHWM")
	t.Logf("p99 %s, %s under load; %d MiB before, %d at most", quiet, loaded, before, most)
	if loaded > max(time.Second, 10*quiet) {
		t.Errorf("the 99th percentile of honest requests is %s, without load %s", loaded, quiet)
	}
	if most > before+150 {
		t.Errorf("it takes %d MiB more", most-before)
	}
}

// cpu returns the CPU time that the process has used.
func (s *weir) cpu(t *testing.T) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.PID()))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	var user, system int
	if _, err := fmt.Sscan(fields[11]+" "+fields[12], &user, &system); err != nil {
		t.Fatal(err)
	}
	return time.Duration(user+system) * 10 * time.Millisecond // USER_HZ is 100
}

// A rule by its name, or by a descriptor, is found without a look at all rules.
func TestRuleByNameAmongMany(t *testing.T) {
	s := startWeir(t, manyRules(t, 100_000))
	for _, path := range []string{
		"/rules?domain=shop&rule=client%3Dnobody",
		"/rules?domain=shop&rule=client%3Dc99999",
		"/rules?domain=nowhere&rule=client%3Dnobody",
		"/keys/get?domain=shop&descriptor=client%3Dnobody",
		"/keys/get?domain=shop&descriptor=nothing%3Dnobody",
	} {
		s.Page(path)
		const n = 200
		before := s.cpu(t)
		for range n {
			s.Page(path)
		}
		each := (s.cpu(t) - before) / n
		t.Logf("%s of CPU: %s", each, path)
		if each > 2*time.Millisecond {
			t.Errorf("%s takes %s of CPU, want at most 2ms", path, each)
		}
	}
}
