package reload_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/pkg/reload"
)

// must fails the test on any error, for steps that only prepare a test.
func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644))
}

// configMap updates a ConfigMap as a kubelet does: it makes a new directory, renames the link ..data, and removes the
// old directory.
func configMap(t *testing.T, dir, version string, files map[string]string) {
	t.Helper()
	data := filepath.Join(dir, "..data")
	old, _ := os.Readlink(data)
	for name, content := range files {
		write(t, filepath.Join(dir, "..v"+version, name), content)
		if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
			must(t, os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)))
		}
	}
	must(t, os.Symlink("..v"+version, data+"_tmp"), os.Rename(data+"_tmp", data))
	if old != "" {
		must(t, os.RemoveAll(filepath.Join(dir, old)))
	}
}

// pair is compiled from two files that must have the same number.
type pair struct{ a, b string }

func TestAThousandReloadsAndNoMixture(t *testing.T) {
	dir := t.TempDir()
	set := func(generation int) {
		s := strconv.Itoa(generation)
		configMap(t, dir, s, map[string]string{"a.yaml": s + strings.Repeat(" ", 1000), "b.yaml": s})
	}
	set(0)
	var refused []string
	var unsettled uint64
	r, err := reload.New(reload.Options[*pair]{
		Sources: []reload.Source{reload.Paths(dir)}, Poll: 3 * time.Millisecond, Settle: time.Millisecond,
		OnLoad: func(e reload.Event) { // one at a time
			switch {
			case e.Err == nil:
			case strings.Contains(e.Err.Error(), "the files have kept changing for"):
				unsettled++ // on a busy machine one swap may take longer than the files get to settle
			default:
				refused = append(refused, e.Err.Error())
			}
		},
		Compile: func(_ context.Context, files []reload.File) (*pair, error) {
			return &pair{strings.TrimSpace(string(files[0].Data)), string(files[1].Data)}, nil
		},
	})
	must(t, err, r.Load(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = r.Run(ctx) }) // in the middle of whatever the writer does
	var gets atomic.Int64
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				for range 100 {
					if p := r.Get(); p.a != p.b {
						t.Errorf("a mixture: %+v", p)
						return
					}
				}
				gets.Add(100)
				time.Sleep(20 * time.Microsecond) // leave the cores to those who write and load
			}
		})
	}
	for generation := 1; generation <= 1000 && !t.Failed(); generation++ {
		set(generation)
		if err := r.Load(ctx); err != nil {
			t.Errorf("generation %d: %v", generation, err)
		}
		if p := r.Get(); p.a != strconv.Itoa(generation) {
			t.Errorf("generation %d: in force is %+v", generation, p)
		}
	}
	cancel()
	wg.Wait()
	s := r.Status()
	t.Logf("%d loads, %d unsettled, %d reads of the value meanwhile", s.Loads, unsettled, gets.Load())
	if s.Loads != 1001 || s.Refused != unsettled {
		t.Errorf("%d loads and %d refused, want 1001 and none: %q", s.Loads, s.Refused-unsettled, refused)
	}
}
