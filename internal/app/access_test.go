package app

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/adminapi"
)

// A start without its admin socket is a start: the log says what to do, and the socket comes once it is free. A file of
// a process that has ended is replaced, and no file is left behind.
func TestAdminSocketOfAnotherProcess(t *testing.T) {
	o := options(t, rulesOf("1"))
	o.AdminSocket = filepath.Join(t.TempDir(), "admin.sock")
	other, err := net.Listen("unix", o.AdminSocket)
	if err != nil {
		t.Fatal(err)
	}
	p := start(t, o)
	if n := p.logged("the admin socket cannot be opened yet"); n != 1 || p.logged("another process listens on this socket") != 1 ||
		p.logged("--admin-socket") != 1 {
		t.Errorf("%d warnings, want 1:\n%s", n, p.log)
	}
	if unix, ok := other.(*net.UnixListener); ok {
		unix.SetUnlinkOnClose(false) // as if it had been killed
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	want(t, "the socket", "true", func() string {
		client, err := adminapi.New(adminapi.Options{Server: "unix:" + o.AdminSocket})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		var done adminapi.Reloaded
		if err := client.Post(t.Context(), "/reload", nil, &done); err != nil {
			return err.Error()
		}
		return "true"
	})
	if info, err := os.Stat(o.AdminSocket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket is %v, %v; want the permissions 0600", info, err)
	}
	p.wait()
	if _, err := os.Stat(o.AdminSocket); !os.IsNotExist(err) {
		t.Errorf("after the stop: %v, want no file", err)
	}
	if strings.Contains(p.log.String(), "level=ERROR") {
		t.Error(p.log)
	}
}
