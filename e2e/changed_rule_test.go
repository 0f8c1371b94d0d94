//go:build e2e

package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// A limit is used up, and its rule's rate, burst and window change in the file. What was used still counts: under
// each rule exactly as many more requests pass as the step admits on the state that the rules before have left.
func TestChangedRuleKeepsWhatWasUsed(t *testing.T) {
	t.Parallel()
	const each = 30
	rules := []string{
		eachAlgorithm("requests_per_unit: 10, unit: year"),
		eachAlgorithm("requests_per_unit: 14, unit: year"),
		eachAlgorithm("requests_per_unit: 5, unit: year"),
		eachAlgorithm("requests_per_unit: 5, unit: year", "burst: 25"),
		eachAlgorithm("requests_per_unit: 20, window: 1000d"),
		eachAlgorithm("requests_per_unit: 20, unit: day"),
	}
	for _, store := range []string{"memory", "redis"} {
		t.Run(store, func(t *testing.T) {
			args := []string{"--store", "memory"}
			if store == "redis" {
				args = []string{
					"--store", redistest.Start(t).URL(), "--store-timeout", "5s", "--no-cached-denials",
				} // they are not charged
			}
			file := ruleFile(t, rules[0])
			s := startWeir(t, file, args...)
			f, states := fleet{s.client(t)}, map[string]limiter.State{}
			for i, text := range rules {
				if i > 0 {
					proctest.Replace(t, file, text)
				}
				await(t, 30*time.Second, "reloaded", func() bool { return strings.Count(s.Output(), "rules loaded") > i })
				for name, p := range policies(t, text) {
					admitted, want := 0, 0
					for range each {
						ok, err := f.ask(t.Context(), 0, name, false)
						if err != nil {
							t.Fatal(err)
						}
						var d limiter.Decision
						states[name], d = p.Step(states[name], time.Now().UnixMicro(), 1)
						admitted, want = admitted+one(ok), want+one(d.Allowed)
					}
					t.Logf("%s under rule %d: %d more", name, i+1, admitted)
					if admitted != want {
						t.Errorf("%s under rule %d: %d more of %d admitted, want %d", name, i+1, admitted, each, want)
					}
				}
			}
		})
	}
}

func one(yes bool) int {
	if yes {
		return 1
	}
	return 0
}
