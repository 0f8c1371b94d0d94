package fileread_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/weir-ratelimit/weir/internal/fileread"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// step is one use of a Reader that does one step.
func step(ctx context.Context, r *fileread.Reader, path string, f func() error) error {
	_, err := fileread.Step(ctx, r, path, nil, func() (int, error) { return 0, f() })
	return err
}

func wantHung(t *testing.T, err error, path string) *fileread.HungError {
	t.Helper()
	var hung *fileread.HungError
	if !errors.As(err, &hung) || hung.Path != path {
		t.Fatalf("error %v, want one that says that %s hangs", err, path)
	}
	return hung
}

// A step that does not return is given up, the next on the file is refused at once and by no goroutine of its own, and
// all is well again when it returns. Other files are read meanwhile.
func TestOneStuckStepAFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &fileread.Reader{}
		release := make(chan struct{})
		hang := func() error { <-release; return nil }
		begin := time.Now()
		hung := wantHung(t, step(t.Context(), r, "/nfs/a", hang), "/nfs/a")
		if took := time.Since(begin); took != fileread.Timeout || !hung.Since.Equal(begin) {
			t.Errorf("given up after %s, hangs since %s later", took, hung.Since.Sub(begin))
		}
		before := runtime.NumGoroutine()
		for range 100 {
			again := wantHung(t, step(t.Context(), r, "/nfs/a", hang), "/nfs/a")
			if *again != *hung {
				t.Fatalf("%+v, want the same as before: %+v", again, hung)
			}
		}
		if took := time.Since(begin); took != fileread.Timeout {
			t.Errorf("100 more took %s", took-fileread.Timeout)
		}
		synctest.Wait()
		// The runtime's finalizers come and go in a goroutine, too.
		if after := runtime.NumGoroutine(); after > before+50 || r.Hung() != 1 {
			t.Errorf("%d goroutines, before 100 more reads %d; %d files hang", after, before, r.Hung())
		}
		if err := step(t.Context(), r, "/nfs/b", func() error { return nil }); err != nil {
			t.Errorf("another file: %v", err)
		}
		close(release)
		synctest.Wait()
		if err := step(t.Context(), r, "/nfs/a", func() error { return nil }); err != nil || r.Hung() != 0 {
			t.Errorf("after it returned: %v, %d files hang", err, r.Hung())
		}
	})
}

// Who gives up early leaves at most one goroutine behind, too, however often; and a step that is only slow is waited
// for.
func TestGivenUpEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &fileread.Reader{}
		release := make(chan struct{})
		var begun atomic.Int32
		for range 50 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			err := step(ctx, r, "/nfs/a", func() error { begun.Add(1); <-release; return nil })
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
		}
		if n := begun.Load(); n != 1 {
			t.Errorf("%d steps begun, want one", n)
		}
		waits := make(chan error, 1)
		go func() { waits <- step(t.Context(), r, "/nfs/a", func() error { return nil }) }()
		synctest.Wait()
		close(release)
		if err := <-waits; err != nil {
			t.Errorf("who waited for the slow step: %v", err)
		}
	})
}

// Many steps, each shorter than the timeout, may take longer in all.
func TestProgressIsNoHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &fileread.Reader{}
		for i := range 10 {
			slow := func() error { <-time.After(fileread.Timeout - time.Second); return nil }
			if err := step(t.Context(), r, strconv.Itoa(i), slow); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestPanicIsAnError(t *testing.T) {
	err := step(t.Context(), fileread.Default, "a", func() error { panic("broken") })
	if err == nil || !strings.Contains(err.Error(), "broken") {
		t.Error(err)
	}
	if err := step(t.Context(), fileread.Default, "a", func() error { return nil }); err != nil {
		t.Errorf("the file after a panic: %v", err)
	}
}

// A directory with ever more files that hang costs a bounded number of goroutines.
func TestManyFilesHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &fileread.Reader{Timeout: time.Second}
		release := make(chan struct{})
		for i := range 300 {
			if err := step(t.Context(), r, strconv.Itoa(i), func() error { <-release; return nil }); err == nil {
				t.Fatal("no error")
			}
		}
		if n := r.Hung(); n != 100 {
			t.Errorf("%d steps hang, want 100", n)
		}
		close(release)
	})
}

func TestReadFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte(strings.Repeat("x", 100_000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if text, err := fileread.ReadFile(t.Context(), file); err != nil || len(text) != 100_000 {
		t.Errorf("%d bytes, %v", len(text), err)
	}
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "absent"): "no such file or directory", dir: "not a regular file", pipe: "not a regular file",
		"/dev/zero": "not a regular file",
	} {
		_, err := fileread.ReadFile(t.Context(), path)
		if err == nil || !strings.Contains(err.Error(), path+": "+want) {
			t.Errorf("%s: %v, want %s", path, err, want)
		}
	}
	large := filepath.Join(dir, "large")
	if err := errors.Join(os.WriteFile(large, nil, 0o600), os.Truncate(large, 16<<20+1)); err != nil {
		t.Fatal(err)
	}
	_, err := fileread.ReadFile(t.Context(), large)
	if err == nil || !strings.Contains(err.Error(), "larger than 16 MiB") {
		t.Errorf("a file of more than 16 MiB: %v", err)
	}
	small, err := os.Stat(file) // as a file that grows while it is read
	if err != nil {
		t.Fatal(err)
	}
	_, err = fileread.Default.ReadRegular(t.Context(), large, "it", small, 15<<20)
	if err == nil || !strings.HasPrefix(err.Error(), "it: larger than 15 MiB") {
		t.Errorf("a file that grows: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := fileread.ReadFile(ended, file); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that has ended: %v", err)
	}
}
