package app

import (
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/adminapi"
)

// A stranger on this machine changes nothing through the admin socket, which has no permissions.
func TestAdminSocketIsNotForOtherUsers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("it takes root to be another user")
	}
	p := start(t, options(t, rulesOf("1")))
	reload := func() string {
		conn, err := net.Dial("unix", adminapi.Socket("auto", p.app.HTTPAddr()))
		if err != nil {
			return err.Error()
		}
		defer conn.Close() //nolint:errcheck // only read from
		_ = conn.SetDeadline(time.Now().Add(patience))
		_, _ = io.WriteString(conn, "POST /reload HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n")
		answer, err := io.ReadAll(conn)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return err.Error()
		}
		return string(answer)
	}
	if got := reload(); !strings.HasPrefix(got, "HTTP/1.1 200 ") {
		t.Errorf("the same user: %q", got)
	}
	got := make(chan string, 1)
	go func() { // the thread ends with the goroutine
		runtime.LockOSThread()
		same, nobody := ^uintptr(0), uintptr(65534)
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, same, nobody, same); errno != 0 {
			got <- errno.Error()
			return
		}
		got <- reload()
	}()
	if answer := <-got; answer != "" {
		t.Errorf("another user: %q, want a closed connection", answer)
	}
	if n := p.logged("action=reload"); n != 1 {
		t.Errorf("%d reloads, want 1:\n%s", n, p.log)
	}
}
