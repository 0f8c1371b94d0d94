//go:build e2e && linux

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// hangIn writes a rule file whose opening does not return, as on a file system that hangs: a write lease is on it,
// which Linux breaks after 45 s. awaitHung returns when somebody hangs, release lets him go on.
func hangIn(t *testing.T, path, text string) (awaitHung, release func()) {
	t.Helper()
	if err := os.WriteFile(path+"~", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(path+"~", os.O_RDWR, 0)
	if err == nil {
		_, err = unix.FcntlInt(file.Fd(), unix.F_SETLEASE, unix.F_WRLCK)
	}
	if err == nil {
		err = os.Rename(path+"~", path)
	}
	if err != nil {
		t.Fatal(err)
	}
	release = func() { _ = file.Close() } // which ends the lease
	t.Cleanup(release)
	return func() {
		t.Helper()
		proctest.Eventually(t, "hanging", func() bool {
			kind, err := unix.FcntlInt(file.Fd(), unix.F_GETLEASE, 0)
			return err == nil && kind != unix.F_WRLCK // it is being broken
		})
	}, release
}

// A rule file whose reading never returns stops neither reloads nor the process: /readyz, the log and a metric name
// the file, the rules in force stay, Weir loads another file in its place, and SIGTERM ends the process meanwhile.
func TestReadThatHangs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		proctest.Replace(t, path, text)
		return path
	}
	write("a.yaml", modes)
	s := startWeir(t, dir, "--drain-delay", "0s")
	conn := dial(t, s.GRPC)
	path := filepath.Join(dir, "b.yaml")
	more := "domain: modes\ndescriptors: [{key: more, rate_limit: {requests_per_unit: 0, unit: hour}}]\n"

	hangIn(t, path, more)
	proctest.Eventually(t, "stale", func() bool {
		return strings.HasPrefix(s.readiness(t), "200 OK\nready\n") &&
			strings.Contains(s.readiness(t), "newest files refused since 2")
	})
	if got := ask(t, conn, "free", "more"); got != "OK: OK OK" {
		t.Errorf("a request meanwhile is answered %s", got)
	}
	if n := s.Metric("weir_file_reads_hung"); n != 1 {
		t.Errorf("%g reads hang, want 1", n)
	}
	if n := strings.Count(s.Output(), path+": reading the file has not returned for"); n != 1 {
		t.Errorf("%d lines say that the file hangs", n)
	}
	write("b.yaml", more)
	proctest.Eventually(t, "loaded from another file",
		func() bool { return ask(t, conn, "more") == "OVER_LIMIT: OVER_LIMIT" })
	if text := s.readiness(t); !strings.Contains(text, "\nrules: ok\n") {
		t.Errorf("/readyz: %s", text)
	}

	awaitHung, _ := hangIn(t, path, more+"\n")
	awaitHung()
	begin := time.Now()
	if code := s.Terminate(20 * time.Second); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	t.Logf("the process ended %s after SIGTERM", time.Since(begin))
}

// While the process starts, SIGHUP means a reload, and SIGTERM ends it, also while the start hangs.
func TestSignalsDuringTheStart(t *testing.T) {
	t.Parallel()
	run := func(t *testing.T) (s *weir, release func()) {
		path := filepath.Join(t.TempDir(), "rules.yaml")
		awaitHung, release := hangIn(t, path, modes)
		s = newWeir(t, path, "--drain-delay", "0s")
		s.Launch()
		awaitHung()
		return s, release
	}
	t.Run("SIGHUP", func(t *testing.T) {
		s, release := run(t)
		s.Signal(syscall.SIGHUP)
		release()
		s.AwaitReady()
		proctest.Eventually(t, "reloaded",
			func() bool { return strings.Contains(s.Output(), "rule files have not changed") })
		if code := s.Terminate(20 * time.Second); code != 0 {
			t.Errorf("exit code %d, want 0", code)
		}
	})
	t.Run("SIGTERM", func(t *testing.T) {
		s, _ := run(t)
		if code := s.Terminate(20 * time.Second); code != 1 || !strings.Contains(s.Output(), "context canceled") {
			t.Errorf("exit code %d, want 1 and why", code)
		}
	})
}
