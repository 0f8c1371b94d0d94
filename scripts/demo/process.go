package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// process is a program that the demo started.
type process struct {
	name   string
	cmd    *exec.Cmd
	log    string // the file that its output goes to
	exited chan struct{}
}

// start runs a program with its output in a file of the directory. It is in a process group of its own: Ctrl-C
// reaches the demo, and the demo ends its programs in order.
func start(dir, name, binary string, args ...string) (*process, error) {
	p := &process{name: name, log: filepath.Join(dir, name+".log"), exited: make(chan struct{})}
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()                     //nolint:errcheck // the program has its own handle
	p.cmd = exec.Command(binary, args...) //nolint:gosec,noctx // stop ends it; the binaries are run's own
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

// await asks url until it answers 200.
func (p *process) await(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	for {
		err := get(ctx, url)
		if err == nil {
			return nil
		}
		select {
		case <-p.exited:
			return p.died()
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w\n%s", p.name, err, p.output())
		case <-poll.C:
		}
	}
}

// died is the error that the process ended by itself.
func (p *process) died() error { return fmt.Errorf("%s ended by itself:\n%s", p.name, p.output()) }

// stop ends the process: asked at first, killed if it takes too long.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may be gone already
	select {
	case <-p.exited:
	case <-time.After(15 * time.Second):
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

// get is nil if url answers 200.
func get(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // nothing is read
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answered %s", url, resp.Status)
	}
	return nil
}

// free says whether nothing listens on the ports.
func free(ctx context.Context, addrs ...string) error {
	var errs []error
	for _, addr := range addrs {
		var config net.ListenConfig
		ln, err := config.Listen(ctx, "tcp", addr)
		if err != nil {
			errs = append(errs, fmt.Errorf("the demo needs %s, which something else uses: %w", addr, err))
			continue
		}
		if err := ln.Close(); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
