package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// patience is how long a program may take to start or to stop.
const patience = 30 * time.Second

// process is a program that the benchmark started.
type process struct {
	name   string
	cmd    *exec.Cmd
	log    string // the file that its output goes to
	exited chan struct{}
}

// start runs a program with its output in a file of the directory.
func start(dir, name, binary string, args ...string) (*process, error) {
	p := &process{name: name, log: filepath.Join(dir, name+".log"), exited: make(chan struct{})}
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()                     //nolint:errcheck // the program has its own handle
	p.cmd = exec.Command(binary, args...) //nolint:gosec,noctx // stop ends it; the binaries are the benchmark's own
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = ownGroup()
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		_ = p.cmd.Wait() // that it ended is news enough; why is in its log
		close(p.exited)
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// await polls ready until it is nil. On failure the process is stopped.
func (p *process) await(ctx context.Context, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.exited:
			return fmt.Errorf("%s ended by itself:\n%s", p.name, p.output())
		case <-ctx.Done():
			p.stop()
			return fmt.Errorf("%s is not ready: %w\n%s", p.name, err, p.output())
		case <-poll.C:
		}
	}
}

// stop ends the process: asked at first, killed if it takes too long.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may be gone already
	select {
	case <-p.exited:
	case <-time.After(patience):
		_ = p.cmd.Process.Kill()
		<-p.exited
	}
}

func (p *process) output() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// freeAddr is a TCP address of this machine on which nothing listens, with a port below those that outgoing
// connections are given.
func freeAddr(ctx context.Context) (string, error) {
	var config net.ListenConfig
	var err error
	for range 100 {
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(20_000+rand.IntN(12_000))) //nolint:gosec // no secret
		var l net.Listener
		if l, err = config.Listen(ctx, "tcp", addr); err == nil {
			return addr, l.Close()
		}
	}
	return "", err
}

// reachable is nil if something listens.
func reachable(network, addr string) func(context.Context) error {
	return func(ctx context.Context) error {
		var d net.Dialer
		conn, err := d.DialContext(ctx, network, addr)
		if err != nil {
			return err
		}
		return conn.Close()
	}
}
