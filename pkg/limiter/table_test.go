package limiter_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// TestEveryAlgorithmIsComplete: each line of the table has a Go file, an oracle, a Lua twin, and a section of
// docs/algorithms.md. CONTRIBUTING.md lists them for whoever adds an algorithm.
func TestEveryAlgorithmIsComplete(t *testing.T) {
	docs, err := os.ReadFile("../../docs/algorithms.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range limiter.Algorithms() {
		t.Run(a.String(), func(t *testing.T) {
			for _, refill := range []limiter.Refill{limiter.RefillGreedy, limiter.RefillInterval} {
				in := limiter.Params{Algorithm: a, Limit: 10, Window: time.Second, Refill: refill}
				if refill != limiter.RefillGreedy && !a.Has("refill") {
					continue
				}
				p := mustPolicy(t, in)
				if newOracle(in, p) == nil {
					t.Errorf("oracle_test.go has no oracle of %s", a)
				}
				if lua := "redisstore/lua/" + p.Script() + ".lua"; !exists(lua) {
					t.Errorf("there is no %s: the Lua twin of the step", lua)
				}
			}
			if file := a.String() + ".go"; !exists(file) {
				t.Errorf("there is no %s", file)
			}
			if !strings.Contains(string(docs), "\n## "+a.String()+"\n") {
				t.Errorf("docs/algorithms.md has no section %s", a)
			}
		})
	}
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}
