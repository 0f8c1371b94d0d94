package redistest

import (
	"bufio"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// ask sends one inline command over TCP and returns the answer's first line.
func ask(addr, command string) (string, error) {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return "", err
	}
	defer conn.Close() //nolint:errcheck // nothing was written that could be lost
	if err := conn.SetDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
		return "", err
	}
	if _, err := conn.Write([]byte(command + "\r\n")); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	return strings.TrimSpace(line), err
}

func want(t *testing.T, s *Server, command, answer string) {
	t.Helper()
	got, err := ask(s.Addr(), command)
	if err != nil || got != answer {
		t.Fatalf("%s answered %q, %v; want %q", command, got, err, answer)
	}
}

func TestServersAreSeparate(t *testing.T) {
	a, b := Start(t), Start(t)
	want(t, a, "SET k 1", "+OK")
	want(t, b, "EXISTS k", ":0")
}

func TestRestartForgetsAndKeepsItsAddress(t *testing.T) {
	s := Start(t)
	addr := s.Addr()
	want(t, s, "SET k 1", "+OK")
	s.Kill()
	if _, err := ask(addr, "PING"); err == nil {
		t.Fatal("a killed server answers")
	}
	s.Restart()
	if s.Addr() != addr {
		t.Fatalf("listens on %s, was on %s", s.Addr(), addr)
	}
	want(t, s, "EXISTS k", ":0")
	s.Stop()
	if _, err := ask(addr, "PING"); err == nil {
		t.Fatal("a stopped server answers")
	}
}

func TestPause(t *testing.T) {
	s := Start(t)
	s.Pause()
	if answer, err := ask(s.Addr(), "PING"); !os.IsTimeout(err) {
		t.Fatalf("a paused server answered %q, %v; want a time-out", answer, err)
	}
	s.Resume()
	want(t, s, "PING", "+PONG")
}

func TestArguments(t *testing.T) {
	s := Start(t, "--requirepass", "secret")
	want(t, s, "PING", "-NOAUTH Authentication required.")
	want(t, s, "AUTH secret", "+OK")
}

func TestSocketPathIsShort(t *testing.T) {
	t.Run(strings.Repeat("a long name ", 20), func(t *testing.T) {
		s := Start(t)
		conn, err := net.Dial("unix", strings.TrimSuffix(strings.TrimPrefix(s.SocketURL(), "unix://"), "?db=0"))
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestRedisCell(t *testing.T) {
	s := StartRedisCell(t)
	want(t, s, "CL.THROTTLE k 15 30 60 1", "*5")
}
