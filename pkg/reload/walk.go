package reload

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/weir-ratelimit/weir/pkg/fileread"
)

// walkedFile is a file that a walk finds.
type walkedFile struct {
	name     string // as the user would write it
	realPath string // absolute, without symbolic links
	info     fs.FileInfo
	root     string // the directory that it may include files from: the given one, or that of the given file
}

// visitor receives what a walk finds.
type visitor interface {
	dir(realPath string)     // before it is listed
	link(path string)        // an entry that is a symbolic link, before it is followed
	file(f walkedFile) error // once for each real file
	other(name string)       // a regular file in a directory whose name Read skips
}

// walk goes through all paths, also after errors, and returns all errors.
func walk(ctx context.Context, s *fileread.Session, files Files, paths []string, v visitor) error {
	w := walker{ctx: ctx, session: s, files: files, visitor: v, seen: map[string]bool{}}
	for _, path := range paths {
		w.start(filepath.Clean(path))
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.Join(w.errs...)
}

type walker struct {
	visitor

	ctx     context.Context //nolint:containedctx // of one walk
	session *fileread.Session
	files   Files           // which of them are read
	given   string          // the path of the walk that is under way
	root    string          // see walkedFile
	seen    map[string]bool // by real path; true: it is a file, or holds one
	errs    []error
}

// fail collects an error. It returns true, as if there were a file: "no file" would be a second error about the same.
func (w *walker) fail(err error) (found bool) {
	w.errs = append(w.errs, err)
	return true
}

func (w *walker) start(path string) {
	w.given = path
	realPath, info, err := w.session.Resolve(path, nil)
	switch {
	case errors.Is(err, fs.ErrNotExist) && w.files.Absent != nil && w.files.Absent():
	case err != nil:
		w.fail(err)
	case info.IsDir():
		w.root = realPath
		if !w.list(path, realPath) && !w.files.EveryFile {
			w.fail(fmt.Errorf("%s: no *.yaml or *.yml file in this directory", path))
		}
	default:
		if w.root, _, err = w.session.Resolve(filepath.Dir(path), nil); err != nil {
			w.fail(err)
			return
		}
		w.read(path, realPath, info)
	}
}

// list visits a directory's entries, and reports whether there is a file among them or below.
func (w *walker) list(dir, realDir string) (found bool) {
	if found, ok := w.seen[realDir]; ok {
		return found
	}
	w.seen[realDir] = false // for a link from below to here
	w.dir(realDir)
	entries, err := w.session.ReadDir(realDir, dir)
	if err != nil {
		return w.fail(err)
	}
	for _, e := range entries {
		if w.ctx.Err() != nil {
			return true
		}
		found = w.entry(filepath.Join(dir, e.Name()), filepath.Join(realDir, e.Name()), e) || found
	}
	w.seen[realDir] = found
	return found
}

// entry visits an entry of a directory.
func (w *walker) entry(path, realPath string, e fs.DirEntry) (found bool) {
	below, _ := filepath.Rel(w.given, path)
	isLink := e.Type()&fs.ModeSymlink != 0
	wanted := w.files.isFileName(e.Name()) && w.files.includesPath(below)
	switch {
	case strings.HasPrefix(e.Name(), "."):
		return false
	case e.IsDir():
		return w.files.leadsOn(below) && w.list(path, realPath)
	case !wanted && !isLink:
		if e.Type().IsRegular() {
			w.other(path)
		}
		return false
	}
	var info fs.FileInfo
	var err error
	if isLink {
		w.link(path)
		realPath, info, err = w.session.Resolve(path, nil)
	} else {
		info, err = w.session.Lstat(realPath, path)
	}
	switch {
	case err != nil:
		return wanted && w.fail(err)
	case info.IsDir():
		return w.files.leadsOn(below) && w.list(path, realPath)
	case wanted && (info.Mode().IsRegular() || !w.files.EveryFile):
		return w.read(path, realPath, info)
	case info.Mode().IsRegular():
		w.other(path)
	}
	return false
}

func (w *walker) read(path, realPath string, info fs.FileInfo) (found bool) {
	if w.seen[realPath] {
		return true
	}
	w.seen[realPath] = true
	err := w.file(walkedFile{path, realPath, info, w.root})
	if errors.Is(err, fs.ErrNotExist) { // a link has just been changed, and its old target is gone
		if realPath, info, err = w.session.Resolve(path, nil); err == nil {
			err = w.file(walkedFile{path, realPath, info, w.root})
		}
	}
	if err != nil {
		w.fail(err)
	}
	return true
}

// maxSkipped bounds how many files Skipped returns.
const maxSkipped = 1000

// Skipped returns the regular files in and below the given directories that Read skips because of their names, at most
// a thousand, in the order of a walk. It leaves out names that begin with ".", and directories that cannot be listed,
// which Read reports.
func (p Files) Skipped(ctx context.Context) []string {
	names, _ := fileread.Do(ctx, p.reader(), func(s *fileread.Session) ([]string, error) {
		var found skipped
		_ = walk(ctx, s, p, p.Paths, &found)
		return found.names, nil
	})
	return names
}

// skipped is a visitor that collects the names of files that Read skips.
type skipped struct{ names []string }

func (*skipped) dir(string)            {}
func (*skipped) link(string)           {}
func (*skipped) file(walkedFile) error { return nil }

func (s *skipped) other(name string) {
	if len(s.names) < maxSkipped {
		s.names = append(s.names, name)
	}
}
