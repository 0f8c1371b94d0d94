package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"time"
)

// profile runs every scenario against every process of Weir while the process takes a CPU profile, and merges the
// profiles into a file for the compiler's profile-guided optimization.
func (b *bench) profile(ctx context.Context, dir, out string) error {
	args := []string{"tool", "pprof", "-proto", "-output", out}
	for _, t := range b.targets {
		for _, s := range b.scenarios {
			if t.admin == "" {
				continue
			}
			file := filepath.Join(dir, fmt.Sprintf("%s-%s.pprof", t.name, s.name))
			done := make(chan error, 1)
			go func() { done <- t.profile(ctx, b.Duration, file) }()
			_, err := b.measure(ctx, s, t)
			if err := errors.Join(err, <-done); err != nil {
				return fmt.Errorf("%s, %s: %w", t.name, s.name, err)
			}
			args = append(args, file)
			fmt.Fprintf(b.progress, "profiled %s under %s\n", t.name, s.name)
		}
	}
	return command(exec.CommandContext(ctx, "go", args...))
}

// profile writes a CPU profile of the target over time d, at least a second, from Weir's admin socket.
func (t *target) profile(ctx context.Context, d time.Duration, file string) error {
	_, port, err := net.SplitHostPort(t.admin)
	if err != nil {
		return err
	}
	url := fmt.Sprintf("http://weir/debug/pprof/profile?seconds=%d", max(1, int(d.Seconds())))
	return command(exec.CommandContext(ctx, "curl", "-sSf", "--abstract-unix-socket", "weir-"+port, "-o", file, url))
}

// command runs a program. Its error has the program's output.
func command(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	return nil
}
