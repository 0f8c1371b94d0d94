package reload

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/weir-ratelimit/weir/internal/fileread"
	"github.com/weir-ratelimit/weir/internal/panics"
)

// resyncAfter is how long after a change of the tree the watches are set again: once for a burst of changes.
const resyncAfter = 10 * time.Millisecond

// Watch implements Source. It returns soon after ctx ends. A file system that hangs is an error.
func (p Files) Watch(ctx context.Context, changed chan<- struct{}) error {
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch files: %w", err)
	}
	defer panics.Go("end of a watch", func() { _ = notify.Close() }) // it waits for a watch that is being added
	w := &watcher{Files: p, notify: notify, watched: map[string]fs.FileInfo{}}
	if err := w.run(ctx, changed); err != nil {
		return fmt.Errorf("watch files: %w", err)
	}
	return nil
}

// watcher watches the directories where a change can change what Read returns. It watches no files, since a file's
// watch ends with the file. Its paths are absolute and without symbolic links, so that a directory has one name.
type watcher struct {
	Files

	notify  *fsnotify.Watcher
	watched map[string]fs.FileInfo // the watched directories

	// The tree as of the last walk:
	wanted map[string]bool // directories to watch; true: Read reads their files, false: only names matter
	names  map[string]bool // paths that matter in any directory: the given ones, and symbolic links in them
}

func (w *watcher) run(ctx context.Context, changed chan<- struct{}) error {
	resync := time.After(0)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-resync:
			resync = nil
			if err := w.sync(ctx); err != nil && ctx.Err() == nil {
				return err
			}
			Hint(changed) // also for files that came into a new directory before its watch
		case e, ok := <-w.notify.Events:
			if !ok {
				return fsnotify.ErrClosed
			}
			if !w.matters(e) {
				continue
			}
			Hint(changed)
			if resync == nil && (e.Op != fsnotify.Write || w.Includes != nil) { // a write may change what a file includes
				resync = time.After(resyncAfter)
			}
		case err := <-w.notify.Errors:
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				return err
			}
			resync = time.After(resyncAfter) // any events were lost
		}
	}
}

// matters reports whether an event can change what Read returns. A log beside the files must not.
func (w *watcher) matters(e fsnotify.Event) bool {
	read, known := w.wanted[filepath.Dir(e.Name)]
	_, self := w.wanted[e.Name]
	switch {
	case self || !known || w.names[e.Name]:
		return true
	case read: // a new or removed name may be a directory or a link
		return e.Op&^(fsnotify.Write|fsnotify.Chmod) != 0 || w.isFileName(filepath.Base(e.Name))
	default:
		return false
	}
}

// sync sets the watches for the tree as it is now. It walks until a walk adds no watch: then everything that the last
// walk saw was already watched.
func (w *watcher) sync(ctx context.Context) error {
	for added := true; added && ctx.Err() == nil; {
		w.wanted, w.names = map[string]bool{}, map[string]bool{}
		found, _ := w.walk(ctx) // Read reports what cannot be read
		for _, dir := range found.dirs {
			w.wanted[dir] = true
		}
		for _, path := range slices.Concat(w.Paths, found.links) {
			w.link(ctx, path)
		}
		if w.Includes != nil {
			_ = w.load(ctx, found.files) // Read reports these, too
			for name := range w.included(found.files) {
				w.link(ctx, name)
			}
		}
		var err error
		if added, err = w.add(ctx); err != nil {
			return err
		}
	}
	return nil
}

// add changes the watches to the wanted directories, and reports whether one is new.
func (w *watcher) add(ctx context.Context) (added bool, err error) {
	for dir := range w.watched {
		if _, ok := w.wanted[dir]; !ok { // before adding: a new one may be the same directory under another name
			_ = w.notify.Remove(dir) // fails if the watch ended with the directory
			delete(w.watched, dir)
		}
	}
	for dir := range w.wanted {
		_, info, _, err := w.reader().Resolve(ctx, dir)
		if err == nil {
			_, err = fileread.Step(ctx, w.reader(), dir, info, func() (struct{}, error) {
				return struct{}{}, w.notify.Add(dir) // also a known one: another directory may have taken its place
			})
		}
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
			delete(w.watched, dir)
		case err != nil:
			return false, fmt.Errorf("%s: %w", dir, err)
		default:
			old := w.watched[dir]
			added = added || old == nil || !os.SameFile(old, info)
			w.watched[dir] = info
		}
	}
	return added, nil
}

// link adds each directory where a change can make the path lead elsewhere.
func (w *watcher) link(ctx context.Context, path string) {
	realPath, _, links, err := w.reader().Resolve(ctx, path)
	if err == nil {
		links = append(links, realPath)
	}
	for _, link := range links {
		w.name(link)
	}
}

// name makes the path matter. Its directory has no symbolic links.
func (w *watcher) name(path string) {
	dir := filepath.Dir(path)
	if _, ok := w.wanted[dir]; !ok {
		w.wanted[dir] = false
	}
	w.names[path] = true
}
