// Package proctest runs real programs for one test: Weir itself, Envoy and others, each on ports of its own, with its
// output in the report if the test fails, and gone when the test ends. It has what these programs need, too: a Client
// for requests through an Envoy, an Authority for certificates, Replace for files that are edited.
//
// Take it where a promise is about the program as users start it. Redis is in redistest; programs that are no tests
// take launch.
package proctest

import (
	"context"
	"net"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/launch"
)

// patience is how long Weir or Envoy may take to start: on a busy machine of two cores that takes seconds.
const patience = time.Minute

// Buffer is a bytes.Buffer that one goroutine may read while another one writes.
type Buffer = launch.Buffer

// Process is a running program of one test.
type Process struct {
	*launch.Process

	tb testing.TB
}

// Program returns the path of the first of the programs that there is. Under -short it skips the test; without a
// program it fails the test and says how to get one.
func Program(tb testing.TB, names ...string) string {
	tb.Helper()
	SkipIfShort(tb, names[0])
	path, err := launch.Find(names...)
	if err != nil {
		tb.Fatal(err)
	}
	return path
}

// SkipIfShort skips a test that runs a real program if -short is set.
func SkipIfShort(tb testing.TB, program string) {
	tb.Helper()
	if testing.Short() {
		tb.Skipf("needs %s: left out by -short", program)
	}
}

// Start runs cmd and kills it when the test ends. If the test has failed by then, it logs the program's output. name
// is what messages call the program.
func Start(tb testing.TB, name string, cmd *exec.Cmd) *Process {
	tb.Helper()
	p, err := launch.Start(name, cmd)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		p.Kill()
		if tb.Failed() {
			tb.Logf("output of %s:\n%s", name, p.Output())
		}
	})
	return &Process{p, tb}
}

// Await polls ready until it returns nil. It fails the test if the process ends first, or if that takes longer than
// within.
func (p *Process) Await(within time.Duration, ready func() error) {
	p.tb.Helper()
	if err := p.TryAwait(within, ready); err != nil {
		p.tb.Fatal(err)
	}
}

// TryAwait is Await for a caller that can handle the error.
func (p *Process) TryAwait(within time.Duration, ready func() error) error {
	return p.Process.Await(context.Background(), within, func(context.Context) error { return ready() })
}

// Signal sends a signal. It fails the test if the process is gone.
func (p *Process) Signal(sig syscall.Signal) {
	p.tb.Helper()
	if err := p.Process.Signal(sig); err != nil {
		p.tb.Fatal(err)
	}
}

// Wait returns the exit code when the process has ended, -1 if a signal ended it. It fails the test if the process
// still runs after the timeout.
func (p *Process) Wait(timeout time.Duration) int {
	p.tb.Helper()
	code, err := p.Process.Wait(timeout)
	if err != nil {
		p.tb.Fatal(err)
	}
	return code
}

// Terminate sends SIGTERM and returns what Wait returns.
func (p *Process) Terminate(timeout time.Duration) int {
	p.tb.Helper()
	p.Signal(syscall.SIGTERM)
	return p.Wait(timeout)
}

// Await polls ready until it returns nil. It fails the test if that takes longer than within.
func Await(tb testing.TB, within time.Duration, ready func() error) {
	tb.Helper()
	for deadline := time.Now().Add(within); ; time.Sleep(20 * time.Millisecond) {
		err := ready()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			tb.Fatalf("not after %s: %v", within, err)
		}
	}
}

// FreeAddr returns a TCP address of 127.0.0.1 on which nothing listens.
func FreeAddr(tb testing.TB) string {
	tb.Helper()
	addr, err := launch.FreeAddr(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	return addr
}

// FreePort returns the port of a FreeAddr.
func FreePort(tb testing.TB) int {
	tb.Helper()
	_, text, _ := net.SplitHostPort(FreeAddr(tb))
	port, err := strconv.Atoi(text)
	if err != nil {
		tb.Fatal(err)
	}
	return port
}
