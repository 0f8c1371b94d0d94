package fileread_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/internal/fileread"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
)

func TestMain(m *testing.M) { casetest.FindLeaks(m) }

// read is a reading of one step.
func read(ctx context.Context, r *fileread.Reader, name string, f func() error) error {
	_, err := fileread.Do(ctx, r, name, func(func(string)) (int, error) { return 0, f() })
	return err
}

func wantHung(t *testing.T, err error, path string) {
	t.Helper()
	if !errors.Is(err, fileread.ErrHung) || !strings.HasPrefix(err.Error(), path+": reading the file has not returned for 10s: ") {
		t.Fatalf("error %v, want one that says that %s hangs", err, path)
	}
}

// A step that does not return is given up, the next reading of that name is refused at once and by no goroutine of its
// own, and all is well again when the step returns. What has another name is read meanwhile.
func TestOneStuckReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &fileread.Reader{}
		release := make(chan struct{})
		hang := func() error { <-release; return nil }
		begin := time.Now()
		for range 100 {
			wantHung(t, read(t.Context(), r, "/nfs/a", hang), "/nfs/a")
		}
		if took := time.Since(begin); took != fileread.Timeout || r.Hung() != 1 {
			t.Errorf("100 took %s, and %d hang", took, r.Hung())
		}
		if err := read(t.Context(), r, "/nfs/b", func() error { return nil }); err != nil {
			t.Errorf("another file: %v", err)
		}
		close(release)
		synctest.Wait()
		if err := read(t.Context(), r, "/nfs/a", func() error { return nil }); err != nil || r.Hung() != 0 {
			t.Errorf("after it returned: %v, %d files hang", err, r.Hung())
		}
	})
}

// Another file may have taken the place of the one that hangs, so the reading is tried again each minute: by a bounded
// number of goroutines.
func TestTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &fileread.Reader{}
		release := make(chan struct{})
		for range 200 {
			wantHung(t, read(t.Context(), r, "/nfs/a", func() error { <-release; return nil }), "/nfs/a")
			time.Sleep(time.Minute)
		}
		if n := r.Hung(); n != 100 {
			t.Errorf("%d readings hang, want 100", n)
		}
		close(release)
		synctest.Wait()

		release = make(chan struct{})
		wantHung(t, read(t.Context(), r, "/nfs/a", func() error { <-release; return nil }), "/nfs/a")
		time.Sleep(time.Minute)
		for range 3 {
			if err := read(t.Context(), r, "/nfs/a", func() error { return nil }); err != nil {
				t.Errorf("another file in its place: %v", err)
			}
		}
		close(release)
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
			err := read(ctx, r, "/nfs/a", func() error { begun.Add(1); <-release; return nil })
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
		}
		if n := begun.Load(); n != 1 {
			t.Errorf("%d steps begun, want one", n)
		}
		waits := make(chan error, 1)
		go func() { waits <- read(t.Context(), r, "/nfs/a", func() error { return nil }) }()
		synctest.Wait()
		close(release)
		if err := <-waits; err != nil {
			t.Errorf("who waited for the slow step: %v", err)
		}
	})
}

// Many steps, each shorter than the timeout, may take longer in all. The error names the one that hangs.
func TestProgressIsNoHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		_, err := fileread.Do(t.Context(), &fileread.Reader{}, "all", func(at func(string)) (int, error) {
			for i := range 10 {
				at(strconv.Itoa(i))
				time.Sleep(fileread.Timeout - time.Second)
			}
			at("stuck")
			<-release
			return 0, nil
		})
		wantHung(t, err, "stuck")
		close(release)
	})
}

func TestPanicIsAnError(t *testing.T) {
	err := read(t.Context(), fileread.Default, "a", func() error { panic("broken") })
	if err == nil || !strings.Contains(err.Error(), "broken") {
		t.Error(err)
	}
	if err := read(t.Context(), fileread.Default, "a", func() error { return nil }); err != nil {
		t.Errorf("the file after a panic: %v", err)
	}
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
	_, err = fileread.Regular(large, "it", small, 15<<20)
	if err == nil || !strings.HasPrefix(err.Error(), "it: larger than 15 MiB") {
		t.Errorf("a file that grows: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := fileread.ReadFile(ended, file); !errors.Is(err, context.Canceled) {
		t.Errorf("a context that has ended: %v", err)
	}
}
