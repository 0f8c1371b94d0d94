// Package proctest runs real programs for one test: Weir, Envoy and others, each on its own ports. A failing test
// reports their output, and they end with the test. It also has related helpers: a Client for requests through an
// Envoy, an Authority for certificates, and Replace for editing files.
//
// Use it if a promise is about the program as users start it. redistest has Redis; programs that are not tests use
// launch.
package proctest

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/launch"
)

// Patience is the maximum time for a program to start, to stop or to respond, even on an overloaded machine.
const Patience = 5 * time.Minute

// Buffer is a bytes.Buffer that one goroutine may read while another one writes.
type Buffer = launch.Buffer

// Process is a running program of one test.
type Process struct {
	*launch.Process

	tb testing.TB
}

// Program returns the path of the first program that exists, or fails the test with a hint. It skips it under -short.
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
// identifies the program in messages.
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

// Await polls ready until it returns nil. It fails the test if the process ends before, or after the time within.
func (p *Process) Await(within time.Duration, ready func() error) {
	p.tb.Helper()
	if err := p.Process.Await(context.Background(), within, func(context.Context) error { return ready() }); err != nil {
		p.tb.Fatal(err)
	}
}

// Signal sends a signal. It fails the test if the process has ended.
func (p *Process) Signal(sig syscall.Signal) {
	p.tb.Helper()
	if err := p.Process.Signal(sig); err != nil {
		p.tb.Fatal(err)
	}
}

// Wait returns the exit code when the process has ended, or -1 if a signal ended it. It fails the test if the process
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
	for began := time.Now(); ; time.Sleep(launch.Pause(began)) {
		err := ready()
		if err == nil {
			return
		}
		if time.Since(began) > within {
			tb.Fatalf("not after %s: %v", within, err)
		}
	}
}

// Eventually waits with Patience until a condition holds. What fails the test in words.
func Eventually(tb testing.TB, what string, holds func() bool) {
	tb.Helper()
	Await(tb, Patience, func() error {
		if holds() {
			return nil
		}
		return errors.New(what)
	})
}

// FreeAddr returns a TCP address of 127.0.0.1 that is not in use.
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

// Replace writes a file as an editor does, so that a reader sees either the old or the new text, because it renames a
// new file over the old file. An error fails the test. Any goroutine of the test may call it.
func Replace(tb testing.TB, path, text string) {
	tb.Helper()
	err := os.WriteFile(path+"~", []byte(text), 0o600)
	if err == nil {
		err = os.Rename(path+"~", path)
	}
	if err != nil {
		tb.Error(err)
	}
}

// CPU returns the CPU time of this process. Other programs on the machine affect it less than the elapsed time.
func CPU(tb testing.TB) time.Duration {
	tb.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
