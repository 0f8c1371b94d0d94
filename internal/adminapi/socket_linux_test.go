package adminapi_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/adminapi"
)

// Process and commands find each other by the HTTP address alone.
func TestSocket(t *testing.T) {
	for _, tc := range []struct{ flag, addr, want string }{
		{"auto", ":8080", "@weir-8080"},
		{"auto", "[::1]:8090", "@weir-8090"},
		{"auto", "unix:/run/weir/http.sock", "/run/weir/http.sock.admin"},
		{"auto", "", ""},
		{"", ":8080", ""},
		{"/run/weir/admin.sock", ":8080", "/run/weir/admin.sock"},
		{"@mine", "", "@mine"},
	} {
		if got := adminapi.Socket(tc.flag, tc.addr); got != tc.want {
			t.Errorf("--admin-socket %q --http-addr %q: %q, want %q", tc.flag, tc.addr, got, tc.want)
		}
	}
}

// as runs f with another effective user, on a thread that ends with it.
func as(t *testing.T, user int, f func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		same := ^uintptr(0)
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, same, uintptr(user), same); errno != 0 {
			done <- errno
			return
		}
		f()
		done <- nil
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// serve writes a byte to all that SameUser lets through.
func serve(raw net.Listener) {
	l := adminapi.SameUser(raw)
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = conn.Write([]byte("x"))
		_ = conn.Close()
	}
}

// read returns an error if serve did not let this process through.
func read(name string) error {
	conn, err := net.Dial("unix", name)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // only read from
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	_, err = io.ReadFull(conn, make([]byte, 1))
	return err
}

// Of an abstract socket, which has no permissions, both sides admit only the same user and root.
func TestAbstractSocketIsForTheSameUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("it takes root to be another user")
	}
	name := "@weir-test-" + strings.TrimPrefix(t.TempDir(), "/")
	if adminapi.ListensOn(name) {
		t.Error("nobody listens")
	}
	raw, err := net.Listen("unix", name)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close() //nolint:errcheck // the test ends
	go serve(raw)
	if err := read(name); err != nil || !adminapi.ListensOn(name) {
		t.Errorf("the same user: %v", err)
	}
	const nobody = 65534
	as(t, nobody, func() {
		if err := read(name); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a stranger is served: %v", err)
		}
		if adminapi.ListensOn(name) { // it may be anybody's
			t.Error("a command would trust a process of another user")
		}
	})
}

// These variables have TestMain of a process of its own serve an abstract socket, or read from it.
const serveOn, readFrom = "WEIR_TEST_SERVE_ON", "WEIR_TEST_READ_FROM"

func TestMain(m *testing.M) {
	if name := os.Getenv(serveOn); name != "" {
		raw, err := net.Listen("unix", name)
		if err != nil {
			panic(err)
		}
		_, _ = os.Stdout.WriteString("ready\n")
		serve(raw)
	}
	if name := os.Getenv(readFrom); name != "" {
		err := read(name)
		_, _ = fmt.Printf("ready\n%t %v", err == nil, err)
		return
	}
	os.Exit(m.Run())
}

// A process of another PID namespace, such as another container with the same network, proves nothing by its user:
// containers often run as 65534, which is also how a user namespace shows every user that it does not know. A process
// sees the pids of processes in a child namespace, but not of those in the parent namespace.
func TestAbstractSocketIsNotForOtherContainers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("it takes root to make a PID namespace")
	}
	for _, tc := range []struct {
		name     string
		flags    uintptr
		isServed bool
	}{{"the same namespace", 0, true}, {"another namespace", syscall.CLONE_NEWPID, false}} {
		name := "@weir-test-" + tc.name + strings.TrimPrefix(t.TempDir(), "/")
		inNamespace := func(env string) io.Reader {
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = append(os.Environ(), env+"="+name)
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: tc.flags}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Skip(err) // a container without the right to make namespaces
			}
			t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
			if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
				t.Fatal(err)
			}
			return out
		}
		inNamespace(serveOn)
		if err := read(name); (err == nil) != tc.isServed || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the server in %s: %v", tc.name, err)
		}
		name += "-here"
		raw, err := net.Listen("unix", name)
		if err != nil {
			t.Fatal(err)
		}
		defer raw.Close() //nolint:errcheck // the test ends
		go serve(raw)
		got, _ := io.ReadAll(inNamespace(readFrom))
		if isServed := strings.HasPrefix(string(got), "true"); isServed != tc.isServed {
			t.Errorf("the client in %s: %s", tc.name, got)
		}
	}
}
