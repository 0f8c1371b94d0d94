package proctest

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"
)

func refuses(context.Context) error { return errors.New("connection refused") }

func TestAwaitSaysHowTheProcessEnded(t *testing.T) {
	p := Start(t, "broken", exec.Command("sh", "-c", "echo no such rule; exit 3"))
	err := p.Process.Await(t.Context(), 10*time.Second, refuses)
	for _, want := range []string{"broken ended by itself", "exit status 3", "no such rule"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
}

func TestAwaitSaysWhatItWaitsFor(t *testing.T) {
	p := Start(t, "slow", exec.Command("sleep", "60"))
	err := p.Process.Await(t.Context(), 20*time.Millisecond, refuses)
	if err == nil || !strings.Contains(err.Error(), "slow is not ready after 20ms: connection refused") {
		t.Errorf("error %v", err)
	}
}
