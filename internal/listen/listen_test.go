package listen

import (
	"net"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
)

// A Unix socket never has the permissions that the umask leaves: it has its own before it has a name.
func TestSocketIsBornWithItsMode(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("not run: only Linux makes a socket's file with the permissions of the socket")
	}
	before := syscall.Umask(0)
	defer syscall.Umask(before)
	path := filepath.Join(t.TempDir(), "weir.sock")
	// without the chmod that follows
	l, err := (&net.ListenConfig{Control: withMode(0o640)}).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // only listened on
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != 0o640 {
		t.Errorf("the socket is made with %o, want 640", got)
	}
}
