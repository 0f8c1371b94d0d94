package reload_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/fileread"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

// A file that hangs when it is opened does not end reloads: what is in force stays, the status says since when which
// file hangs, and the next good content is taken, whether the file answers again or another takes its place. Run ends
// meanwhile as soon as it is told to.
func TestAFileThatHangs(t *testing.T) {
	for name, mend := range map[string]func(t *testing.T, path string, hung *proctest.Hung){
		"answers again": func(_ *testing.T, _ string, hung *proctest.Hung) { hung.Release() },
		"is replaced":   func(t *testing.T, path string, _ *proctest.Hung) { replace(t, path, "b2") },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "b.yaml")
			write(t, filepath.Join(dir, "a.yaml"), "a1")
			reader := &fileread.Reader{Timeout: 100 * time.Millisecond}
			l := follow(t, reload.Options[string]{
				Sources: []reload.Source{reload.Files{Paths: []string{dir}, Includes: including}.ReadBy(reader)},
				Poll:    20 * time.Millisecond,
			})
			write(t, path+"~", "b2")
			hung := proctest.Hang(t, path+"~")
			must(t, os.Rename(path+"~", path))

			for {
				e := l.next(t)
				var err *fileread.HungError
				if e.Outcome == reload.Refused && errors.As(e.Err, &err) {
					if err.Path != path || l.Get() != "a1" {
						t.Fatalf("%v hangs and %q is in force, want %s and a1", err.Path, l.Get(), path)
					}
					break
				}
			}
			for range 5 {
				wantError(t, l.Load(t.Context()), path+": reading it has not returned since ")
			}
			mend(t, path, hung)
			for l.next(t).Outcome != reload.Loaded { // before it, perhaps: not watched
				continue
			}
			if l.Get() != "a1+b2" {
				t.Errorf("%q is in force", l.Get())
			}
			hung.Release()
		})
	}
}

func TestRunEndsWhileAFileHangs(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), "a1")
	sources := []reload.Source{reload.Paths(dir)}
	r, err := reload.New(reload.Options[string]{Sources: sources, Compile: compile, Poll: time.Millisecond})
	must(t, err)
	must(t, r.Load(t.Context()))
	hung := proctest.Hang(t, filepath.Join(dir, "a.yaml"))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	hung.Await(5 * time.Second)
	cancel()
	select {
	case err := <-ended:
		must(t, err)
	case <-time.After(5 * time.Second):
		t.Error("Run does not end")
	}
	hung.Release()
}
