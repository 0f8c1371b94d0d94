package reload

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// resyncAfter is how long after a change of the tree the watches are set anew: one time for a burst of changes.
const resyncAfter = 10 * time.Millisecond

// maxLinks is how many symbolic links are followed on the way of one path, as in Linux.
const maxLinks = 40

// Watch implements Source.
func (p Files) Watch(ctx context.Context, changed chan<- struct{}) error {
	w, err := newWatcher(p)
	if err != nil {
		return fmt.Errorf("watch files: %w", err)
	}
	err = w.run(ctx, changed)
	if err := errors.Join(err, w.notify.Close()); err != nil {
		return fmt.Errorf("watch files: %w", err)
	}
	return nil
}

// watcher watches the directories where something can change what a Read gives. Directories, never files, as a
// file's watch ends with the file. All its paths are absolute and free of symbolic links, so that a directory has
// one name; only paths are as they were given.
type watcher struct {
	notify  *fsnotify.Watcher
	source  Files
	paths   []string
	watched map[string]fs.FileInfo // the directories that are watched

	// What the tree was when it was walked last.
	wanted map[string]bool // directories to watch; true: its files are read, false: only names count there
	names  map[string]bool // paths that count wherever they are: what was given, and symbolic links on the way
}

func newWatcher(source Files) (*watcher, error) {
	w := &watcher{source: source, watched: map[string]fs.FileInfo{}}
	for _, path := range source.Paths {
		abs, err := filepath.Abs(path)
		if err != nil {
			return nil, err
		}
		w.paths = append(w.paths, abs)
	}
	var err error
	w.notify, err = fsnotify.NewWatcher()
	return w, err
}

func (w *watcher) run(ctx context.Context, changed chan<- struct{}) error {
	resync := time.After(0)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-resync:
			resync = nil
			if err := w.sync(ctx); err != nil {
				return err
			}
			hint(changed) // also for what came into a new directory before it was watched
		case e, ok := <-w.notify.Events:
			if !ok {
				return fsnotify.ErrClosed
			}
			if !w.matters(e) {
				continue
			}
			hint(changed)
			if resync == nil && (e.Op != fsnotify.Write || w.source.Includes != nil) { // which a write may change
				resync = time.After(resyncAfter)
			}
		case err := <-w.notify.Errors:
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				return err
			}
			resync = time.After(resyncAfter) // events were lost, any of them
		}
	}
}

// matters says whether an event can change what is read: a log that is written beside the files must not.
func (w *watcher) matters(e fsnotify.Event) bool {
	read, known := w.wanted[filepath.Dir(e.Name)]
	_, self := w.wanted[e.Name]
	switch {
	case self || !known || w.names[e.Name]:
		return true
	case read: // whatever comes or goes may be a directory or a link
		return e.Op&^(fsnotify.Write|fsnotify.Chmod) != 0 || isFileName(filepath.Base(e.Name))
	default:
		return false
	}
}

// sync sets the watches for the tree as it is now. It walks again until a walk adds no watch: then what the last
// walk saw was watched while it was looked at.
func (w *watcher) sync(ctx context.Context) error {
	for added := true; added && ctx.Err() == nil; {
		w.wanted, w.names = map[string]bool{}, map[string]bool{}
		for _, path := range w.paths {
			w.link(path)
		}
		_ = walk(ctx, w.paths, w) // what cannot be read is Read's to report
		w.included(ctx)
		var err error
		if added, err = w.add(); err != nil {
			return err
		}
	}
	return nil
}

// included makes the files count that others refer to.
func (w *watcher) included(ctx context.Context) {
	if w.source.Includes == nil {
		return
	}
	files, _ := w.source.found(ctx) // as above
	for _, name := range w.source.included(files) {
		if abs, err := filepath.Abs(name); err == nil {
			w.link(abs)
		}
	}
}

// add makes the watched directories the wanted ones and says whether one is new.
func (w *watcher) add() (added bool, err error) {
	for dir := range w.watched {
		if _, ok := w.wanted[dir]; !ok { // first, as a new one may be the same directory under another name
			_ = w.notify.Remove(dir) // fails if it went with the directory
			delete(w.watched, dir)
		}
	}
	for dir := range w.wanted {
		info, err := os.Stat(dir)
		if err == nil {
			err = w.notify.Add(dir) // known ones too: another directory may have come in its place
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

func (w *watcher) dir(realPath string) { w.wanted[realPath] = true }
func (w *watcher) file(string) error   { return nil }
func (w *watcher) other(string)        {}

// link wants a watch on each directory where a change can make path lead elsewhere.
func (w *watcher) link(path string) {
	if realPath, ok := w.follow(path, maxLinks); ok {
		w.name(realPath)
	}
}

// name makes path count, whose directory is free of symbolic links.
func (w *watcher) name(path string) {
	dir := filepath.Dir(path)
	if _, ok := w.wanted[dir]; !ok {
		w.wanted[dir] = false
	}
	w.names[path] = true
}

// follow resolves path link by link and names each link on the way, or the place where the way ends.
func (w *watcher) follow(path string, links int) (realPath string, ok bool) {
	parent := filepath.Dir(path)
	if parent == path {
		return path, true
	}
	dir, ok := w.follow(parent, links)
	if !ok {
		return "", false
	}
	here := filepath.Join(dir, filepath.Base(path))
	info, err := os.Lstat(here)
	if err == nil && info.Mode()&fs.ModeSymlink == 0 {
		return here, true
	}
	w.name(here)
	target, err := os.Readlink(here)
	if err != nil || links == 0 {
		return "", false
	}
	if !filepath.IsAbs(target) {
		target = filepath.Join(dir, target)
	}
	return w.follow(target, links-1)
}
