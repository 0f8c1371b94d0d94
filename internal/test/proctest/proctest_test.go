package proctest

import (
	"errors"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestAwaitSaysHowTheProcessEnded(t *testing.T) {
	p := Start(t, "broken", exec.Command("sh", "-c", "echo no such rule; exit 3"))
	err := p.TryAwait(10*time.Second, func() error { return errors.New("connection refused") })
	for _, want := range []string{"broken ended by itself", "exit status 3", "no such rule"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
}

func TestAwaitSaysWhatItWaitsFor(t *testing.T) {
	p := Start(t, "slow", exec.Command("sleep", "60"))
	err := p.TryAwait(20*time.Millisecond, func() error { return errors.New("connection refused") })
	if err == nil || !strings.Contains(err.Error(), "slow is not ready after 20ms: connection refused") {
		t.Errorf("error %v", err)
	}
}

func TestExitCodes(t *testing.T) {
	p := Start(t, "polite", exec.Command("sh", "-c", "trap 'exit 4' TERM; echo ready; while :; do sleep 0.01; done"))
	p.Await(10*time.Second, func() error {
		if p.Output() == "" {
			return errors.New("silent")
		}
		return nil
	})
	if code := p.Terminate(10 * time.Second); code != 4 {
		t.Errorf("exit code %d, want 4", code)
	}
}

func TestProcessEndsWithItsTest(t *testing.T) {
	var p *Process
	t.Run("test", func(t *testing.T) {
		p = Start(t, "sleep", exec.Command("sleep", "60"))
		p.Signal(syscall.SIGSTOP) // also a paused one
	})
	if code := p.Wait(10 * time.Second); code != -1 {
		t.Errorf("exit code %d, want -1: killed", code)
	}
}
