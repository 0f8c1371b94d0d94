// Package launch runs real programs: it starts a program, waits until it is ready, keeps its output, and stops it
// within a time limit. Use it in programs that are not tests, such as the benchmark and the demo; in tests, use
// proctest.
package launch

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// Process is a running program. Its methods are safe for concurrent use.
type Process struct {
	name   string
	cmd    *exec.Cmd
	output Buffer
	exited chan struct{}
	err    error // of Wait; valid after exited is closed
}

// Start runs cmd in its own process group. name identifies the program in messages.
func Start(name string, cmd *exec.Cmd) (*Process, error) {
	p := &Process{name: name, cmd: cmd, exited: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.output, &p.output
	cmd.SysProcAttr = ownGroup()
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		p.err = cmd.Wait()
		close(p.exited)
	}()
	return p, nil
}

// Name returns the name that Start was given.
func (p *Process) Name() string { return p.name }

// PID returns the process ID.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Output returns what the program has written so far, standard output and standard error together.
func (p *Process) Output() string { return p.output.String() }

// Exited is closed when the process has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Died returns an error that the process exited unexpectedly. Call it after Exited is closed.
func (p *Process) Died() error {
	return fmt.Errorf("%s ended by itself (%w):\n%s", p.name, p.err, p.Output())
}

// Await polls ready until it returns nil. It returns an error if the process or ctx ends, or after the time within.
func (p *Process) Await(ctx context.Context, within time.Duration, ready func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for began := time.Now(); ; {
		err := ready(limited)
		if err == nil {
			return nil
		}
		select {
		case <-p.exited:
			return p.Died()
		case <-limited.Done():
			return fmt.Errorf("%s is not ready after %s: %w\n%s", p.name, within, cmp.Or(ctx.Err(), err), p.Output())
		case <-time.After(Pause(began)):
		}
	}
}

// Pause returns how long to wait before asking again whether something is so that has been awaited since then. A wait
// is an eighth longer than necessary, and asks at most ten times a second.
func Pause(since time.Time) time.Duration {
	return min(time.Millisecond+time.Since(since)/8, 100*time.Millisecond)
}

// Signal sends a signal. It returns an error if the process has ended.
func (p *Process) Signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("signal %s to %s: %w", sig, p.name, err)
	}
	return nil
}

// Kill kills the process with SIGKILL, even if it is paused, and returns when it has ended.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // the process may have ended already
	<-p.exited
}

// Wait returns the exit code when the process has ended, -1 if a signal ended it. It returns an error if the process
// still runs after the timeout.
func (p *Process) Wait(timeout time.Duration) (code int, err error) {
	select {
	case <-p.exited:
		return p.cmd.ProcessState.ExitCode(), nil
	case <-time.After(timeout):
		return 0, fmt.Errorf("%s still runs after %s", p.name, timeout)
	}
}

// Stop ends the process with SIGTERM, or with SIGKILL if it still runs after the timeout.
func (p *Process) Stop(timeout time.Duration) {
	_ = p.Signal(syscall.SIGTERM) // the process may have ended already
	if _, err := p.Wait(timeout); err != nil {
		p.Kill()
	}
}

// Buffer is a bytes.Buffer that one goroutine may read while another one writes.
type Buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

// String returns the text written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
