package panics_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/internal/panics"
)

// record sets a handler for the test, and returns a function that returns the handler's calls.
func record(t *testing.T) func() []string {
	t.Helper()
	var mu sync.Mutex
	var got []string
	t.Cleanup(panics.Handle(func(name string, value any, stack []byte) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, fmt.Sprintf("%s: %v: %t", name, value, strings.Contains(string(stack), "explode")))
	}))
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return got
	}
}

func explode() { panic(errors.New("boom")) }

func TestCatch(t *testing.T) {
	got := record(t)
	deferred := false
	if !panics.Catch("part", func() { defer func() { deferred = true }(); explode() }) || !deferred {
		t.Errorf("the panic was not caught, or not after the deferred calls (%t)", deferred)
	}
	if panics.Catch("part", func() {}) {
		t.Error("a function that returned has panicked")
	}
	if all := got(); len(all) != 1 || all[0] != "part: boom: true" {
		t.Errorf("the handler got %q, want one panic with its stack", all)
	}
}

func TestGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := record(t)
		panics.Go("part", explode)
		synctest.Wait()
		if len(got()) != 1 {
			t.Errorf("the handler got %q, want one panic", got())
		}
	})
}

// A function that panics runs again after a pause, until it returns or is stopped.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := record(t)
		runs, start := 0, time.Now()
		panics.Restart(nil, "part", func() {
			if runs++; runs < 3 {
				explode()
			}
		})
		if took := time.Since(start); runs != 3 || took != 2*panics.Pause || len(got()) != 2 {
			t.Errorf("%d runs in %s, panics %q; want 3 with a pause after each panic", runs, took, got())
		}

		stop := make(chan struct{})
		close(stop)
		runs, start = 0, time.Now()
		panics.Restart(stop, "part", func() { runs++; explode() })
		if runs != 1 || time.Since(start) != 0 {
			t.Errorf("%d runs in %s, want one when it is stopped", runs, time.Since(start))
		}
	})
}

// Without a handler a panic ends the process, and its trace begins where the panic began.
func TestWithoutHandler(t *testing.T) {
	if os.Getenv("WEIR_TEST_PANIC") == "1" {
		panics.Handle(func(string, any, []byte) {})() // installed and removed
		panics.Go("part", explode)
		<-t.Context().Done() // the panic comes first
	}
	cmd := exec.Command(os.Args[0], "-test.run", "^TestWithoutHandler$")
	cmd.Env = append(os.Environ(), "WEIR_TEST_PANIC=1")
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || !strings.Contains(string(out), "panic: boom") ||
		!strings.Contains(string(out), "panics_test.explode") || strings.Contains(string(out), "recovered") {
		t.Errorf("the process ended with %v, want a panic:\n%s", err, out)
	}
}
