package main

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/weir-ratelimit/weir/internal/test/launch"
)

// startPeer installs and starts envoyproxy/ratelimit, with its own Redis. It sends no statistics, like the other
// targets.
func (s *starter) startPeer(ctx context.Context, t *target) error {
	if err := command(exec.CommandContext(ctx, "../scripts/tools.sh", "peer")); err != nil {
		return err
	}
	binary, err := launch.Find("service_cmd")
	if err != nil {
		return err
	}
	root := filepath.Join(s.dir, "rules-"+t.name)
	rules := filepath.Join(root, "ratelimit", "config")
	if err := os.MkdirAll(rules, 0o700); err != nil {
		return err
	}
	if err := writeRules(rules, ""); err != nil {
		return err
	}
	if _, err := s.startRedis(ctx, t, "unix"); err != nil {
		return err
	}
	cmd := exec.Command(binary) //nolint:noctx // stop ends it
	cmd.Env = []string{
		"RUNTIME_ROOT=" + root, "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_WATCH_ROOT=false", "USE_STATSD=false",
		"DISABLE_STATS=true", "REDIS_SOCKET_TYPE=unix", "REDIS_URL=" + t.socket, "HOST=127.0.0.1", "DEBUG_HOST=127.0.0.1",
	}
	for variable, addr := range map[string]string{"PORT": "", "DEBUG_PORT": "", "GRPC_PORT": t.addr} {
		if addr == "" {
			if addr, err = launch.FreeAddr(ctx); err != nil {
				return err
			}
		}
		_, port, err := net.SplitHostPort(addr)
		if err != nil {
			return err
		}
		cmd.Env = append(cmd.Env, variable+"="+port)
	}
	p, err := t.run(t.name, cmd)
	if err != nil {
		return err
	}
	t.pid = p.PID()
	return p.Await(ctx, patience, func(ctx context.Context) error { return launch.Dial(ctx, "tcp", t.addr) })
}
