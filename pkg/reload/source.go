package reload

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
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
	// Includes, if not nil, says which files a file refers to, as paths that can be opened. They are read and watched like
	// the others and come behind them, each once, with File.Included. One that is not there is left out: whoever refers to
	// it can say so better.
	Includes func(File) []string
	// Rest, if not nil, is called between small pieces of reading, so that a process that serves requests meanwhile can
	// pause.
	Rest func()
}

// restAfter is how many bytes are read or hashed before Rest is called: some 0.05 ms of work.
const restAfter = 64 << 10

func (p Files) rest() {
	if p.Rest != nil {
		p.Rest()
	}
}

// Read implements Source. Its error holds every path that failed.
func (p Files) Read(ctx context.Context) (Snapshot, error) {
	files, err := p.found(ctx)
	if err != nil {
		return Snapshot{}, err
	}
	if len(files) == 0 {
		return Snapshot{}, errors.New("no path to read files from")
	}
	var errs []error
	for _, name := range p.included(files) {
		data, err := readFile(name, p.rest)
		switch {
		case err == nil:
			files = append(files, File{Name: name, Data: data, Included: true})
		case !errors.Is(err, fs.ErrNotExist):
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return Snapshot{}, err
	}
	return newSnapshot(files, p.rest), nil
}

// found are the files at the paths, past what fails.
func (p Files) found(ctx context.Context) ([]File, error) {
	r := fileReader{rest: p.rest}
	err := walk(ctx, p.Paths, &r)
	return r.files, err
}

// included are the names of the files that the files refer to, sorted, each once.
func (p Files) included(files []File) (all []string) {
	if p.Includes == nil {
		return nil
	}
	for _, f := range files {
		all = append(all, p.Includes(f)...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// fileReader is the visitor that reads.
type fileReader struct {
	files []File
	rest  func()
}

func (r *fileReader) dir(string)   {}
func (r *fileReader) link(string)  {}
func (r *fileReader) other(string) {}

func (r *fileReader) file(name string) error {
	data, err := readFile(name, r.rest)
	if err == nil {
		r.files = append(r.files, File{Name: name, Data: data})
	}
	return err
}

func readFile(name string, rest func()) ([]byte, error) {
	info, err := os.Stat(name) // before it is opened: opening a pipe blocks
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s: not a regular file", name)
	case info.Size() > MaxFileSize:
		return nil, fmt.Errorf("%s: larger than %d MiB, the most that is read of one file", name, MaxFileSize>>20)
	}
	f, err := os.Open(name) //nolint:gosec // reading the files that the operator names is what this is for
	if err != nil {
		return nil, err
	}
	defer f.Close()                                                    //nolint:errcheck // nothing was written
	all := bytes.NewBuffer(make([]byte, 0, info.Size()+bytes.MinRead)) // which it wants to have free
	for err == nil {
		rest()
		_, err = io.CopyN(all, f, restAfter)
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return all.Bytes(), err
}

// isFileName says whether a directory's entry of this name is one of its files.
func isFileName(name string) bool {
	ext := filepath.Ext(name)
	return !strings.HasPrefix(name, ".") && (ext == ".yaml" || ext == ".yml")
}

// visitor is told what a walk comes upon.
type visitor interface {
	dir(realPath string)    // before it is listed
	link(path string)       // an entry that is a symbolic link, before it is followed
	file(name string) error // once for each real file
	other(name string)      // a regular file that is none of a directory's files, by its name
}

// walk goes through all of paths, past what fails, and returns all that failed.
func walk(ctx context.Context, paths []string, v visitor) error {
	w := walker{ctx: ctx, visitor: v, seen: map[string]bool{}}
	for _, path := range paths {
		w.root(filepath.Clean(path))
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.Join(w.errs...)
}

type walker struct {
	visitor

	ctx  context.Context //nolint:containedctx // of one walk
	seen map[string]bool // by real path: whether it is a file or holds one
	errs []error
}

// fail notes an error; what failed counts as a file, for "no file" would be a second error about the same.
func (w *walker) fail(err error) (found bool) {
	w.errs = append(w.errs, err)
	return true
}

func (w *walker) root(path string) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		w.fail(err)
	case !info.IsDir():
		w.read(path)
	case !w.list(path):
		w.fail(fmt.Errorf("%s: no *.yaml or *.yml file in this directory", path))
	}
}

// list visits a directory's entries and says whether there is a file among them or below.
func (w *walker) list(dir string) (found bool) {
	realDir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return w.fail(err)
	}
	if found, ok := w.seen[realDir]; ok {
		return found
	}
	w.seen[realDir] = false // for whoever comes here again from below
	w.dir(realDir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return w.fail(err)
	}
	for _, e := range entries {
		if w.ctx.Err() != nil {
			return true
		}
		found = w.entry(filepath.Join(dir, e.Name()), e) || found
	}
	w.seen[realDir] = found
	return found
}

func (w *walker) entry(path string, e fs.DirEntry) (found bool) {
	if strings.HasPrefix(e.Name(), ".") {
		return false
	}
	mode, wanted := e.Type(), isFileName(e.Name())
	if mode&fs.ModeSymlink != 0 {
		w.link(path)
		info, err := os.Stat(path)
		if err != nil {
			return wanted && w.fail(err)
		}
		mode = info.Mode()
	}
	switch {
	case mode.IsDir():
		return w.list(path)
	case wanted:
		return w.read(path)
	case mode.IsRegular():
		w.other(path)
	}
	return false
}

func (w *walker) read(path string) (found bool) {
	realPath, err := filepath.EvalSymlinks(path)
	if err != nil {
		return w.fail(err)
	}
	if w.seen[realPath] {
		return true
	}
	w.seen[realPath] = true
	if err := w.file(path); err != nil {
		w.fail(err)
	}
	return true
}
