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
	"time"
)

// profile drives every process of Weir through every scenario while it takes a CPU profile of itself, and merges them
// into a file: what the compiler's profile-guided optimization reads.
func (b *bench) profile(ctx context.Context, dir, out string) error {
	args := []string{"tool", "pprof", "-proto", "-output", out}
	for _, t := range b.targets {
		for _, s := range b.scenarios {
			if t.admin == "" {
				continue
			}
			file := filepath.Join(dir, fmt.Sprintf("%s-%s.pprof", t.name, s.name))
			if err := b.profileOne(ctx, t, s, file); err != nil {
				return fmt.Errorf("%s, %s: %w", t.name, s.name, err)
			}
			args = append(args, file)
			fmt.Fprintf(b.progress, "profiled %s under %s\n", t.name, s.name)
		}
	}
	if text, err := exec.CommandContext(ctx, "go", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("merge the profiles: %w\n%s", err, text)
	}
	return nil
}

// profileOne profiles within the time of a measurement.
func (b *bench) profileOne(ctx context.Context, t *target, s scenario, file string) error {
	done := make(chan error, 1)
	go func() { done <- t.profile(ctx, b.Duration, file) }()
	_, err := b.measure(ctx, s, t)
	return errors.Join(err, <-done)
}

// profile writes the CPU profile of the target's next time, at least a second.
func (t *target) profile(ctx context.Context, d time.Duration, file string) error {
	_, port, err := net.SplitHostPort(t.admin)
	if err != nil {
		return err
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", "@weir-"+port) // its admin socket
	}}
	defer transport.CloseIdleConnections()
	url := fmt.Sprintf("http://weir/debug/pprof/profile?seconds=%d", max(1, int(d.Seconds())))
	text, err := pageBy(ctx, &http.Client{Transport: transport}, url)
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o600)
}
