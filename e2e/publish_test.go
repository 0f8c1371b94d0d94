//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// publish runs `weir publish` on a folder of one file and returns what it printed.
func publish(t *testing.T, redis *redistest.Server, rules string) (out string, err error) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "shop.yaml"), []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	return proctest.RunWeir(t, "publish", dir, "--store", redis.URL())
}

// inForce reports whether Weir runs this version.
func (s *weir) inForce(t *testing.T, version int) bool {
	t.Helper()
	_, text := s.Page("/metrics")
	return strings.Contains(text, fmt.Sprintf("\nweir_rules_published_version %d\n", version))
}

// Five processes run a new set within a second of its publication, unless the machine stands still meanwhile. A process
// whose own folder conflicts with the set keeps the set before. A wrong set is not published. Without Redis all keep
// their rules.
func TestPublishedRules(t *testing.T) {
	rules := func(limit int) string {
		return fmt.Sprintf(
			"domain: shop\ndescriptors: [{key: remote_address, rate_limit: {requests_per_unit: %d, unit: year}}]\n", limit)
	}
	redis := redistest.Start(t)
	if out, err := publish(t, redis, rules(1)); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var mesh []*weir
	for range 5 {
		mesh = append(mesh, startWeir(t, "store", "--store", redis.URL()))
	}
	odd := startWeir(t, "store", "--store", redis.URL(), "--rules",
		ruleFile(t, "domain: own\ndescriptors: [{key: a, rate_limit: {requests_per_unit: 1, unit: hour}}]\n"))

	var took []time.Duration
	for version := 2; version <= 10; version++ {
		text := rules(version)
		if version%3 == 0 {
			text += "---\ndomain: own\ndescriptors: [{key: a, rate_limit: {requests_per_unit: 1, unit: hour}}]\n"
		}
		if out, err := publish(t, redis, text); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		began := time.Now() // the publisher has ended
		for i, s := range mesh {
			proctest.Eventually(t, fmt.Sprintf("process %d at version %d", i, version),
				func() bool { return s.inForce(t, version) })
		}
		took = append(took, time.Since(began))
		want := version
		if version%3 == 0 {
			want--
			proctest.Eventually(t, "refused where it does not fit", func() bool {
				return strings.Contains(odd.Output(), fmt.Sprintf("store:shop.yaml@%d:", version))
			})
		}
		proctest.Eventually(t, fmt.Sprintf("the odd one at version %d", want), func() bool { return odd.inForce(t, want) })
	}
	slices.Sort(took)
	t.Logf("from the end of the publication until all 5 processes run it: %s", took)
	if median := took[len(took)/2]; median > 3*time.Second { // less than the poll of 5 s, even on a busy machine
		t.Errorf("in half of the times it took %s until all processes ran a new set, want at most a second", median)
	}

	out, err := publish(t, redis, "domain: shop\ndescriptors: [{rate_limit: {}}]\n")
	if err == nil || !strings.Contains(out, "not published") {
		t.Errorf("a wrong set is published: %v\n%s", err, out)
	}
	redis.Kill()
	for _, s := range mesh {
		if !s.inForce(t, 10) {
			t.Error("a process has lost its rules with Redis")
		}
	}
}
