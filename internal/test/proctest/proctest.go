// Package proctest runs real programs for tests: each on ports of its own, with its output kept for the
// failure report, and gone when the test ends.
package proctest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Process is a running program of one test.
type Process struct {
	tb     testing.TB
	name   string
	cmd    *exec.Cmd
	output Buffer
	exited chan struct{}
	err    error // of Wait; read after exited is closed
}

// Start runs cmd until the test ends, when it is killed if it still runs. If the test failed, its output is
// logged. name is what messages call it.
func Start(tb testing.TB, name string, cmd *exec.Cmd) *Process {
	tb.Helper()
	p := &Process{tb: tb, name: name, cmd: cmd, exited: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.output, &p.output
	cmd.SysProcAttr = dieWithParent()
	if err := cmd.Start(); err != nil {
		tb.Fatalf("start %s: %v", name, err)
	}
	go func() {
		p.err = cmd.Wait()
		close(p.exited)
	}()
	tb.Cleanup(func() {
		p.Kill()
		if tb.Failed() {
			tb.Logf("output of %s:\n%s", name, p.Output())
		}
	})
	return p
}

// Kill ends the process with SIGKILL, also a paused one, and returns when it is gone.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // the only failure is that it is gone already
	<-p.exited
}

// Terminate asks the process to end with SIGTERM and fails the test if it has not ended within the timeout. It
// returns the process's exit code, -1 if a signal ended it.
func (p *Process) Terminate(timeout time.Duration) int {
	p.tb.Helper()
	p.Signal(syscall.SIGTERM)
	return p.Wait(timeout)
}

// Wait returns the exit code once the process ended, and fails the test if that takes longer than timeout.
func (p *Process) Wait(timeout time.Duration) int {
	p.tb.Helper()
	select {
	case <-p.exited:
	case <-time.After(timeout):
		p.tb.Fatalf("%s still runs after %s", p.name, timeout)
	}
	return p.cmd.ProcessState.ExitCode()
}

// Signal sends a signal. It fails the test if the process is gone.
func (p *Process) Signal(sig syscall.Signal) {
	p.tb.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.tb.Fatalf("signal %s to %s: %v", sig, p.name, err)
	}
}

// Output is what the process wrote so far, standard output and error together.
func (p *Process) Output() string { return p.output.String() }

// Await polls ready until it returns nil. It fails the test if the process ends first, or if that takes longer
// than within.
func (p *Process) Await(within time.Duration, ready func() error) {
	p.tb.Helper()
	if err := p.TryAwait(within, ready); err != nil {
		p.tb.Fatal(err)
	}
}

// TryAwait is Await for a caller that can do something about the failure.
func (p *Process) TryAwait(within time.Duration, ready func() error) error {
	var err error
	deadline := time.After(within)
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for {
		if err = ready(); err == nil {
			return nil
		}
		select {
		case <-p.exited:
			return fmt.Errorf("%s ended before it was ready (%w):\n%s", p.name, p.err, p.Output())
		case <-deadline:
			return fmt.Errorf("%s is not ready after %s: %w\n%s", p.name, within, err, p.Output())
		case <-poll.C:
		}
	}
}

// Ports below the ephemeral range: there, no outgoing connection takes the port of a server that a test
// stopped for a while, not even one that tries to reach that very server.
const lowestPort, ports = 20_000, 12_000

// FreePort returns a TCP port of 127.0.0.1 on which nothing listens.
func FreePort(tb testing.TB) int {
	tb.Helper()
	for range 100 {
		port := lowestPort + rand.IntN(ports)
		var config net.ListenConfig
		ln, err := config.Listen(tb.Context(), "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			_ = ln.Close() // it was only to see
			return port
		}
	}
	tb.Fatal("no free TCP port found")
	return 0
}

// Buffer is a bytes.Buffer that is safe to read while a process, or a goroutine, writes.
type Buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (o *Buffer) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(b)
}

// String is what was written so far.
func (o *Buffer) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}
