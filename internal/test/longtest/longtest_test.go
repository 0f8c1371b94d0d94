package longtest_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-ratelimit/weir/internal/test/longtest"
)

func TestForms(t *testing.T) {
	for env, want := range map[string]int{"": 7, "1": 100} {
		t.Setenv("WEIR_LONG", env)
		cases := 0
		longtest.Check(t, 7, func(*rapid.T) { cases++ })
		checked := want
		if testing.Short() {
			checked /= 5 // which rapid does
		}
		if picked := longtest.Pick(7, 100); picked != want || cases != checked {
			t.Errorf("WEIR_LONG=%q: picks %d, checks %d cases, want %d and %d", env, picked, cases, want, checked)
		}
	}
}
