package limiter_test

import (
	"flag"
	"os"
	"testing"
)

// TestMain draws the same properties' histories in every run, unless -rapid.seed says otherwise (0: others each time).
func TestMain(m *testing.M) {
	for name, value := range map[string]string{"rapid.seed": "1", "rapid.checks": "300", "rapid.nofailfile": "true"} {
		if err := flag.Set(name, value); err != nil {
			os.Exit(2)
		}
	}
	flag.Parse()
	os.Exit(m.Run())
}
