package reload

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
)

// A watch goes on after the system has dropped events, and finds what they were about.
func TestWatchGoesOnAfterAnOverflow(t *testing.T) {
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	w := &watcher{Files: Files{Paths: []string{dir}}, notify: notify, watched: map[string]fs.FileInfo{}}
	ctx, stop := context.WithCancel(t.Context())
	changed, ended := make(chan struct{}, 1), make(chan error, 1)
	go func() { ended <- w.run(ctx, changed) }()
	hinted := func(after string) {
		t.Helper()
		select {
		case <-changed:
		case err := <-ended:
			t.Fatalf("the watch ends %s: %v", after, err)
		case <-time.After(time.Minute):
			t.Fatalf("no hint %s", after)
		}
	}
	hinted("at the start")
	if err := notify.Remove(dir); err != nil { // as if the events of a directory that comes back were lost
		t.Fatal(err)
	}
	notify.Errors <- fsnotify.ErrEventOverflow
	hinted("after an overflow")
	if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte("a"), 0o600); err != nil {
		t.Fatal(err)
	}
	hinted("after a change behind the overflow")
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := notify.Close(); err != nil {
		t.Error(err)
	}
}
