// Package redistest runs real Redis servers for a test: one server, a Sentinel with its servers, a Cluster, or several
// servers behind a proxy. Use it for behaviour that depends on Redis, including a Redis that is slow, hangs, restarts
// or fails over.
package redistest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// Server is a redis-server on its own TCP port and Unix socket. By default it has no persistence.
type Server struct {
	tb     testing.TB
	binary string
	dir    string
	port   int
	args   []string
	proc   *proctest.Process
	dead   bool // whether the test has stopped or killed the server
}

// Start runs a redis-server, or $WEIR_TEST_REDIS_SERVER, with further arguments, such as "--maxmemory", "1mb", waits
// until it responds, and kills it when the test ends. Under -short it skips the test. A missing program fails the test.
func Start(tb testing.TB, args ...string) *Server {
	tb.Helper()
	_ = os.Getenv("REDIS") // its version, on which Go's cached results of tests then depend: see the Makefile
	binary := proctest.Program(tb, cmp.Or(os.Getenv("WEIR_TEST_REDIS_SERVER"), "redis-server"))
	s := &Server{tb: tb, binary: binary, dir: shortTempDir(tb), args: args}
	for attempt := 0; ; attempt++ {
		s.port = proctest.FreePort(tb)
		err := s.start()
		if err == nil {
			return s
		}
		if attempt == 2 || !strings.Contains(err.Error(), "Address already in use") {
			tb.Fatal(err)
		}
	}
}

// Addr returns the host:port that the server listens on.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// URL returns the URL of database 0 over TCP.
func (s *Server) URL() string { return "redis://" + s.Addr() + "/0" }

// Socket returns the path of the server's Unix socket.
func (s *Server) Socket() string { return filepath.Join(s.dir, "redis.sock") }

// SocketURL returns the URL of database 0 over the Unix socket.
func (s *Server) SocketURL() string { return "unix://" + s.Socket() + "?db=0" }

// Kill kills the server with SIGKILL and returns when it has ended.
func (s *Server) Kill() {
	s.proc.Kill()
	s.dead = true
}

// Stop stops the server with SIGTERM and returns when it has ended.
func (s *Server) Stop() {
	s.tb.Helper()
	s.proc.Terminate(proctest.Patience)
	s.dead = true
}

// Restart starts the server again on the same port and socket. If it still runs, Restart kills it first.
func (s *Server) Restart() {
	s.tb.Helper()
	s.Kill()
	s.dead = false
	if err := s.start(); err != nil {
		s.tb.Fatal(err)
	}
}

// SetArgs replaces the further arguments of Start for the next Restart.
func (s *Server) SetArgs(args ...string) { s.args = args }

// Pause stops the server with SIGSTOP: its connections stay open, and it does not respond until Resume.
func (s *Server) Pause() {
	s.tb.Helper()
	s.proc.Signal(syscall.SIGSTOP)
	Await(s.tb, s.stopped) // a thread may still respond for a moment
}

// stopped returns an error while a thread of the server runs.
func (s *Server) stopped() error {
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", s.proc.PID()))
	if err != nil {
		return err
	}
	if len(stats) == 0 {
		return errors.New("redis-server has ended")
	}
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if _, state, _ := strings.Cut(string(stat), ") "); !strings.HasPrefix(state, "T") {
			return fmt.Errorf("redis-server is not stopped: %s", stat)
		}
	}
	return nil
}

// Resume continues a paused server.
func (s *Server) Resume() {
	s.tb.Helper()
	s.proc.Signal(syscall.SIGCONT)
}

func (s *Server) start() error {
	args := []string{
		"--bind", "127.0.0.1", "--port", strconv.Itoa(s.port), "--unixsocket", s.Socket(),
		"--dir", s.dir, "--save", "", "--appendonly", "no",
	}
	cmd := exec.Command(s.binary, append(args, s.args...)...)
	s.proc = proctest.Start(s.tb, "redis-server", cmd)
	return s.proc.Process.Await(context.Background(), proctest.Patience, s.ping)
}

// ping returns nil if the server responds, even if it requires a password.
func (s *Server) ping(context.Context) error {
	err := tryDoAs(s, "", nil, "ping") //nolint:contextcheck // it has a timeout
	if err != nil && strings.HasPrefix(err.Error(), "NOAUTH") {
		err = nil
	}
	return err
}

// shortTempDir returns a directory with a short path, because the path of a Unix socket may have only 107 bytes, and
// tb.TempDir contains the name of the test.
func shortTempDir(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("/tmp", "weir") //nolint:usetesting // see above
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
