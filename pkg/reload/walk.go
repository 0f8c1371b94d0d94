package reload

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
)

// tree is what a walk through the paths of Files finds.
type tree struct {
	files   []foundFile // to be read: each real file once, under the first name that leads to it
	dirs    []string    // real paths of the directories
	links   []string    // the directories' entries that are symbolic links
	skipped []string    // regular files in the directories that Read skips because of their names
}

// foundFile is a file of a tree. Its Data is not read yet.
type foundFile struct {
	File

	realPath string // absolute, without symbolic links
	info     fs.FileInfo
	root     string // the directory that it may include files from, besides its own: the given one, or the given file's
}

// walk goes through all paths, also after errors, and returns all errors.
func (p Files) walk(ctx context.Context) (tree, error) {
	w := walker{Files: p, ctx: ctx, seen: map[string]bool{}}
	for _, path := range p.Paths {
		w.start(filepath.Clean(path))
	}
	if ctx.Err() != nil {
		return w.tree, ctx.Err()
	}
	return w.tree, errors.Join(w.errs...)
}

type walker struct {
	Files
	tree

	ctx   context.Context //nolint:containedctx // of one walk
	given string          // the path of the walk that is under way
	root  string          // see foundFile
	seen  map[string]bool // by real path; true: it is a file, or holds one
	errs  []error
}

// fail collects an error. It returns true, as if there were a file: "no file" would be a second error about the same.
func (w *walker) fail(err error) (found bool) {
	w.errs = append(w.errs, err)
	return true
}

func (w *walker) start(path string) {
	w.given = path
	realPath, info, err := w.reader().Resolve(w.ctx, path, nil)
	switch {
	case errors.Is(err, fs.ErrNotExist) && w.Absent != nil && w.Absent():
	case err != nil:
		w.fail(err)
	case info.IsDir():
		w.root = realPath
		if !w.list(path, realPath) && !w.EveryFile {
			w.fail(fmt.Errorf("%s: no *.yaml or *.yml file in this directory", path))
		}
	default:
		if w.root, _, err = w.reader().Resolve(w.ctx, filepath.Dir(path), nil); err != nil {
			w.fail(err)
			return
		}
		w.add(path, realPath, info)
	}
}

// list visits a directory's entries, and reports whether there is a file among them or below.
func (w *walker) list(dir, realDir string) (found bool) {
	if found, ok := w.seen[realDir]; ok {
		return found
	}
	w.seen[realDir] = false // for a link from below to here
	w.dirs = append(w.dirs, realDir)
	entries, err := w.reader().ReadDir(w.ctx, realDir, dir)
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
	if strings.HasPrefix(e.Name(), ".") {
		return false
	}
	below, _ := filepath.Rel(w.given, path)
	mode, wanted := e.Type(), w.isFileName(e.Name()) && w.includesPath(below)
	var info fs.FileInfo
	var err error
	switch {
	case mode&fs.ModeSymlink != 0:
		w.links = append(w.links, path)
		realPath, info, err = w.reader().Resolve(w.ctx, path, nil)
	case wanted && !mode.IsDir():
		info, err = w.reader().Lstat(w.ctx, realPath, path)
	}
	if err != nil {
		return wanted && w.fail(err)
	}
	if info != nil {
		mode = info.Mode()
	}
	switch {
	case mode.IsDir():
		return w.leadsOn(below) && w.list(path, realPath)
	case wanted && (mode.IsRegular() || !w.EveryFile):
		return w.add(path, realPath, info)
	case mode.IsRegular():
		w.skipped = append(w.skipped, path)
	}
	return false
}

func (w *walker) add(path, realPath string, info fs.FileInfo) (found bool) {
	if !w.seen[realPath] {
		w.seen[realPath] = true
		w.files = append(w.files, foundFile{File{Name: path}, realPath, info, w.root})
	}
	return true
}

// maxSkipped bounds how many files Skipped returns.
const maxSkipped = 1000

// Skipped returns the regular files in and below the given directories that Read skips because of their names, at most
// a thousand, in the order of a walk. It leaves out names that begin with ".", and directories that cannot be listed,
// which Read reports.
func (p Files) Skipped(ctx context.Context) []string {
	found, _ := p.walk(ctx)
	return found.skipped[:min(len(found.skipped), maxSkipped)]
}
