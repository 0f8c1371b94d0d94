// Package redistest starts a real redis-server of the test's own, so that no test borrows one.
package redistest

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// patience is how long a redis-server may take to start or stop before the test fails.
const patience = 10 * time.Second

// Server is a redis-server on a TCP port and a Unix socket of its own. It keeps nothing on disk, and loses its
// data when it ends, unless its arguments say otherwise.
type Server struct {
	tb     testing.TB
	binary string
	dir    string
	port   int
	args   []string
	proc   *proctest.Process
	dead   bool // it was ended
}

// Start runs a redis-server with further arguments, such as "--maxmemory", "1mb", waits until it answers, and
// kills it when the test ends. Under -short it skips the test; without a redis-server it fails it.
func Start(tb testing.TB, args ...string) *Server {
	tb.Helper()
	if testing.Short() {
		tb.Skip("needs redis-server: left out by -short")
	}
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		tb.Fatal("redis-server is not in PATH: apt-get install redis-server, or make tools")
	}
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

// Addr is the host:port that the server listens on.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// URL is the server's database 0 over TCP.
func (s *Server) URL() string { return "redis://" + s.Addr() + "/0" }

// Socket is the path of the server's Unix socket.
func (s *Server) Socket() string { return filepath.Join(s.dir, "redis.sock") }

// SocketURL is the server's database 0 over its Unix socket.
func (s *Server) SocketURL() string { return "unix://" + s.Socket() + "?db=0" }

// Kill ends the server with SIGKILL and returns when it is gone.
func (s *Server) Kill() {
	s.proc.Kill()
	s.dead = true
}

// Stop ends the server with SIGTERM and returns when it is gone.
func (s *Server) Stop() {
	s.tb.Helper()
	s.proc.Terminate(patience)
	s.dead = true
}

// Restart starts the server again on the same port and socket. One that still runs is killed first.
func (s *Server) Restart() {
	s.tb.Helper()
	s.Kill()
	s.dead = false
	if err := s.start(); err != nil {
		s.tb.Fatal(err)
	}
}

// SetArgs are further arguments from the next Restart on, in place of those of Start.
func (s *Server) SetArgs(args ...string) { s.args = args }

// Pause stops the server in its tracks: its connections stay open, and nothing is answered until Resume.
func (s *Server) Pause() {
	s.tb.Helper()
	s.proc.Signal(syscall.SIGSTOP)
}

// Resume lets a paused server go on.
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
	return s.proc.TryAwait(patience, s.ping)
}

// ping says whether the server answers. One that asks for a password does.
func (s *Server) ping() error {
	conn, err := net.DialTimeout("unix", s.Socket(), time.Second)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // nothing was written that could be lost
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return err
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return err
	}
	if !strings.HasPrefix(answer, "+PONG") && !strings.HasPrefix(answer, "-NOAUTH") {
		return fmt.Errorf("PING answered %q", answer)
	}
	return nil
}

// shortTempDir is a directory whose name leaves room for a socket's: its path may have 107 bytes, and
// tb.TempDir carries the test's name.
func shortTempDir(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("/tmp", "weir") //nolint:usetesting // see above
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
