//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// A rule is edited ten times under traffic. No request fails, the old rule decides none after the new one has decided
// one, and a change takes effect at once, which is less than the poll of 5 s even on a busy machine.
func TestEditedRule(t *testing.T) {
	rules := func(limit int) string {
		return fmt.Sprintf("domain: shop\ndescriptors:\n  - key: remote_address\n"+
			"    rate_limit: {algorithm: funnel, requests_per_unit: %d, unit: second}\n", limit)
	}
	file := ruleFile(t, rules(1_000_000))
	s := startWeir(t, file)
	e := proxy{Weir: []string{s.GRPC}, Domain: "shop"}.start(t)
	traffic := newClient(t, "127.0.0.1", e.Listener("front")).goOn(t, "/")
	proctest.Eventually(t, "any traffic", func() bool { return traffic.count(200, time.Time{}) > 10 })

	type change struct {
		at     time.Time
		status int // from then on
	}
	var changes []change
	for i := range 10 {
		c := change{at: time.Now(), status: 200}
		if i%2 == 0 {
			c.status = 429
			proctest.Replace(t, file, rules(0))
		} else {
			proctest.Replace(t, file, rules(1_000_000))
		}
		changes = append(changes, c)
		proctest.Eventually(t, "decided by the edited rule", func() bool { return traffic.count(c.status, c.at) > 10 })
	}
	samples := traffic.stop()

	if got := tally(samples); got[200]+got[429] != len(samples) {
		t.Fatalf("statuses %v: a request failed", got)
	}
	slices.SortFunc(samples, func(a, b sample) int { return a.began.Compare(b.began) })
	var effects []time.Duration
	for i, c := range changes {
		until := time.Now()
		if i+1 < len(changes) {
			until = changes[i+1].at
		}
		var done time.Time // the first answer by the new rule
		for _, s := range samples {
			switch answered := s.began.Add(s.took); {
			case s.began.Before(c.at) || s.began.After(until):
			case s.status == c.status && (done.IsZero() || answered.Before(done)):
				done = answered
			case s.status != c.status && answered.Before(until) && !done.IsZero() && s.began.After(done):
				t.Errorf("edit %d: a request was decided by the old rule after one was by the new", i)
			}
		}
		effects = append(effects, done.Sub(c.at))
	}
	slices.Sort(effects)
	t.Logf("%d requests, no failure; from edit to effect: fastest %s, median %s, slowest %s",
		len(samples), effects[0], effects[len(effects)/2], effects[len(effects)-1])
	if median := effects[len(effects)/2]; median > 3*time.Second {
		t.Errorf("from edit to effect: %s in the median, want less than a second", median)
	}
}
