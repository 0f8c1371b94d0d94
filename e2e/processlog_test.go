//go:build e2e

package e2e

import (
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// pipe is a process's standard error, which the test reads.
type pipe struct {
	name  string
	fd    int    // does not block
	close func() // ends the reader
}

// startInto starts a process whose standard error is a pipe of the test, and waits until it is ready.
func startInto(t *testing.T, rules string, args ...string) (*weir, pipe) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "stderr")
	if err := syscall.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	stderr := pipe{name: name, fd: opened(t, name, syscall.O_RDONLY)}
	stderr.close = sync.OnceFunc(func() { _ = syscall.Close(stderr.fd) })
	t.Cleanup(stderr.close)
	s := newWeir(t, rules, append([]string{"--drain-delay", "0s"}, args...)...)
	s.LaunchVia(`exec "$0" "$@" 2>'` + name + `'`)
	s.AwaitReady()
	return s, stderr
}

// opened opens a named pipe without waiting for its other end.
func opened(t *testing.T, name string, mode int) int {
	t.Helper()
	fd, err := syscall.Open(name, mode|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

// fill makes the pipe take no more.
func (p pipe) fill(t *testing.T) {
	t.Helper()
	write := opened(t, p.name, syscall.O_WRONLY)
	defer syscall.Close(write) //nolint:errcheck // it is full
	for {
		n, err := syscall.Write(write, make([]byte, 4096))
		if errors.Is(err, syscall.EAGAIN) {
			return
		}
		if err != nil || n == 0 {
			t.Fatalf("fill the pipe: %d, %v", n, err)
		}
	}
}

// When the reader of the log ends, as a log collector does that restarts, or reads nothing, so that the pipe is full,
// Weir still handles reloads, outages and its stop. It loses only log lines.
func TestLogThatIsNotRead(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(*testing.T, pipe){
		"the reader ends": func(_ *testing.T, p pipe) { p.close() }, "the pipe is full": func(t *testing.T, p pipe) { p.fill(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redis := redistest.Start(t)
			rules := ruleFile(t, modes)
			s, stderr := startInto(t, rules, "--store", redis.URL(), "--on-store-failure", "allow")
			stop(t, stderr)
			conn := dial(t, s.GRPC)
			loads := func() float64 { return s.Metric(`weir_rules_loads_total{result="ok"}`) }
			for n := loads() + 1; n < 5; n++ {
				proctest.Replace(t, rules, modes+strings.Repeat("#", int(n))+"\n")
				proctest.Eventually(t, "reloaded", func() bool { return loads() >= n })
			}
			s.Signal(syscall.SIGHUP)
			redis.Kill()
			for range 20 {
				if got := ask(t, conn, "everybody"); got != "OK: OK" {
					t.Fatalf("a request of an outage is answered %s", got)
				}
			}
			if name == "the reader ends" {
				proctest.Eventually(t, "counted as dropped", func() bool {
					return s.Metric(`weir_log_dropped_total{reason="write_error"}`) > 0
				})
			}
			if code := s.Terminate(20 * time.Second); code != 0 {
				t.Errorf("exit code %d, want 0", code)
			}
		})
	}
}
