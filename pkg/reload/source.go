package reload

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weir-ratelimit/weir/pkg/fileread"
)

// MaxFileSize is the most that Paths reads of one file, in bytes: about half a million rules, and little enough
// that a path given by mistake does not fill the memory.
const MaxFileSize = 64 << 20

// Paths is a Source of files and directories, read in the order given. Of a directory come all files *.yaml and
// *.yml, those of its subdirectories too, in the order of their names. Names that begin with "." are left out
// (editors' copies, and the "..data" of a Kubernetes ConfigMap, whose visible links lead there anyway); a file
// that is given itself is read whatever its name. Symbolic links are followed. What is reached in several ways is
// read once, under the name reached first, so links may form a loop.
//
// It is an error if a path is not there, a file cannot be read or is larger than MaxFileSize, or a directory
// that was given holds no file.
func Paths(paths ...string) Source { return Files{Paths: paths} }

// Files is a Source as Paths makes it, with more to say.
type Files struct {
	Paths []string
	// Includes, if not nil, returns the files that a file refers to, as paths that can be opened. They are read and watched like
	// the others and come behind them, each once, with File.Included. One that is not there is left out: whoever refers to
	// it can say so better. Symbolic links must not lead out of the path of Paths that the file was found at, nor out of
	// the directory that the file itself lies in: that is an error.
	Includes func(File) []Include
	// Rest, if not nil, is called between small pieces of reading, so that a process that serves requests meanwhile can
	// pause.
	Rest func()
	// Reader reads the files, which may lie on a file system that hangs; nil is fileread.Default. A file that hangs is an
	// error that holds a fileread.HungError.
	Reader *fileread.Reader
}

// Include is a file that another one refers to.
type Include struct {
	Name string // a path that can be opened
	At   string // where the other one refers to it, for messages; empty: its name
}

// restAfter is how many bytes are read or hashed before Rest is called: some 0.05 ms of work.
const restAfter = 64 << 10

func (p Files) rest() {
	if p.Rest != nil {
		p.Rest()
	}
}

func (p Files) reader() *fileread.Reader {
	if p.Reader == nil {
		return fileread.Default
	}
	return p.Reader
}

// Read implements Source. Its error holds every path that failed. It returns soon after ctx ends, whatever hangs.
func (p Files) Read(ctx context.Context) (Snapshot, error) {
	return fileread.Do(ctx, p.reader(), func(s *fileread.Session) (Snapshot, error) { return p.read(ctx, s) })
}

func (p Files) read(ctx context.Context, s *fileread.Session) (Snapshot, error) {
	found, err := p.found(ctx, s)
	if err != nil {
		return Snapshot{}, err
	}
	if len(found) == 0 {
		return Snapshot{}, errors.New("no path to read files from")
	}
	files := make([]File, len(found), len(found)+1)
	for i, f := range found {
		files[i] = f.File
	}
	var errs []error
	for _, i := range p.included(found) {
		data, err := i.read(s, p.rest)
		switch {
		case err == nil:
			files = append(files, File{Name: i.name, Data: data, Included: true})
		case !errors.Is(err, fs.ErrNotExist):
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return Snapshot{}, err
	}
	return newSnapshot(files, p.rest), nil
}

// foundFile is a file of a directory or path, with where it may include files from: the directory or path that was given,
// and its own directory, both without links.
type foundFile struct {
	File

	root, dir string
}

// found are the files at the paths, past what fails.
func (p Files) found(ctx context.Context, s *fileread.Session) ([]foundFile, error) {
	r := fileReader{session: s, rest: p.rest}
	err := walk(ctx, s, p.Paths, &r)
	return r.files, err
}

// include is a file that others refer to.
type include struct {
	name string
	by   []referrer
}

// referrer is a file that refers to another one, and where.
type referrer struct {
	foundFile

	at string
}

// included are the files that the files refer to, sorted by name, each once.
func (p Files) included(files []foundFile) (all []include) {
	if p.Includes == nil {
		return nil
	}
	by := map[string][]referrer{}
	for _, f := range files {
		for _, to := range p.Includes(f.File) {
			by[to.Name] = append(by[to.Name], referrer{f, cmp.Or(to.At, f.Name)})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(by)) {
		all = append(all, include{name, by[name]})
	}
	return all
}

// read reads the file if it lies where all that refer to it may include from.
func (i include) read(s *fileread.Session, rest func()) ([]byte, error) {
	realPath, info, err := s.Resolve(i.name, nil)
	if err != nil {
		return nil, err
	}
	for _, f := range i.by {
		if !below(realPath, f.root) && !below(realPath, f.dir) {
			return nil, fmt.Errorf("%s: %s, which it refers to, leads by a symbolic link to %s, outside %s: put the file itself into "+
				"that directory, or a link that stays in it", f.at, i.name, realPath, f.root)
		}
	}
	return s.ReadFile(realPath, i.name, info, MaxFileSize, rest)
}

// below says whether a path is in a directory or deeper. Both are absolute and free of links.
func below(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && filepath.IsLocal(rel)
}

// fileReader is the visitor that reads.
type fileReader struct {
	session *fileread.Session
	files   []foundFile
	rest    func()
}

func (r *fileReader) dir(string)   {}
func (r *fileReader) link(string)  {}
func (r *fileReader) other(string) {}

func (r *fileReader) file(f walkedFile) error {
	data, err := r.session.ReadFile(f.realPath, f.name, f.info, MaxFileSize, r.rest)
	if err == nil {
		r.files = append(r.files, foundFile{File{Name: f.name, Data: data}, f.root, filepath.Dir(f.realPath)})
	}
	return err
}

// isFileName says whether a directory's entry of this name is one of its files.
func isFileName(name string) bool {
	ext := filepath.Ext(name)
	return !strings.HasPrefix(name, ".") && (ext == ".yaml" || ext == ".yml")
}

// walkedFile is a file that a walk comes upon.
type walkedFile struct {
	name     string // as the user would write it
	realPath string // absolute, and free of links
	info     fs.FileInfo
	root     string // the directory that it may include from: the one given, or that of the file given
}

// visitor is told what a walk comes upon.
type visitor interface {
	dir(realPath string)     // before it is listed
	link(path string)        // an entry that is a symbolic link, before it is followed
	file(f walkedFile) error // once for each real file
	other(name string)       // a regular file that is none of a directory's files, by its name
}

// walk goes through all of paths, past what fails, and returns all that failed.
func walk(ctx context.Context, s *fileread.Session, paths []string, v visitor) error {
	w := walker{ctx: ctx, session: s, visitor: v, seen: map[string]bool{}}
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
	root    string          // of the path that is walked: see walkedFile
	seen    map[string]bool // by real path: whether it is a file or holds one
	errs    []error
}

// fail notes an error; what failed counts as a file, for "no file" would be a second error about the same.
func (w *walker) fail(err error) (found bool) {
	w.errs = append(w.errs, err)
	return true
}

func (w *walker) start(path string) {
	realPath, info, err := w.session.Resolve(path, nil)
	switch {
	case err != nil:
		w.fail(err)
	case info.IsDir():
		w.root = realPath
		if !w.list(path, realPath) {
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

// list visits a directory's entries and says whether there is a file among them or below.
func (w *walker) list(dir, realDir string) (found bool) {
	if found, ok := w.seen[realDir]; ok {
		return found
	}
	w.seen[realDir] = false // for whoever comes here again from below
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
	wanted, isLink := isFileName(e.Name()), e.Type()&fs.ModeSymlink != 0
	switch {
	case strings.HasPrefix(e.Name(), "."):
		return false
	case e.IsDir():
		return w.list(path, realPath)
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
		return w.list(path, realPath)
	case wanted:
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
	if errors.Is(err, fs.ErrNotExist) { // a link on the way has been changed just now, and what it led to is gone
		if realPath, info, err = w.session.Resolve(path, nil); err == nil {
			err = w.file(walkedFile{path, realPath, info, w.root})
		}
	}
	if err != nil {
		w.fail(err)
	}
	return true
}
