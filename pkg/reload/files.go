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

	"github.com/weir-ratelimit/weir/internal/fileread"
)

// DefaultMaxSize is how many bytes Paths reads at most, of all files together: enough for 200,000 rules. A path given
// by mistake does not fill the memory.
const DefaultMaxSize = 16 << 20

// Paths returns a Source of files and directories, in the given order. From a directory and its subdirectories it reads
// all files *.yaml and *.yml, in the order of their names. It skips names that begin with ".": editors' copies, and the
// "..data" of a Kubernetes ConfigMap, to which visible links lead. It reads a given file whatever its name. It follows
// symbolic links. It reads a file only once, under the first name that leads to it, so links may form a loop.
//
// It is an error if a path does not exist, a file cannot be read, the files are larger than DefaultMaxSize together, or
// a given directory has no file to read.
func Paths(paths ...string) Source { return Files{Paths: paths} }

// Files is the Source that Paths returns, with options.
type Files struct {
	Paths []string
	// Includes, if not nil, returns the files that a file refers to, as paths that can be opened. They are read and
	// watched like the others and follow them, each once, with File.Included. A missing one is left out: Compile can
	// report it better. It is an error if symbolic links lead out of the path of Paths that the file was found at, and out
	// of the directory of the file.
	Includes func(File) []Include
	// EveryFile reads every regular file of a directory whose name does not begin with ".", and takes a directory without
	// files for one that is empty.
	EveryFile bool
	// Prefix, if not empty, leaves out the files of a directory whose path below it, with "." in place of "/", does not
	// begin with Prefix and ".".
	Prefix string
	// MaxSize is how many bytes are read at most, of all files together; 0 means DefaultMaxSize. Larger ones are an error
	// before they are read. MaxSizeName is what that says to raise; empty means MaxSize.
	MaxSize     int64
	MaxSizeName string
	// Absent, if not nil, returns whether a path that does not exist has no files. Otherwise that is an error.
	Absent func() bool

	fileReader *fileread.Reader // of tests; else nil, for fileread.Default
}

// Include is a file that another file refers to.
type Include struct {
	Name string // a path that can be opened
	At   string // where the other file refers to it, for messages; empty: the other file's name
}

func (p Files) reader() *fileread.Reader {
	return cmp.Or(p.fileReader, fileread.Default)
}

// Read implements Source. Its error names every path that failed. A file system that does not answer for 10 s, as NFS
// may, is an error, too. Read returns soon after ctx ends, whatever the file system does.
func (p Files) Read(ctx context.Context) (Snapshot, error) {
	if len(p.Paths) == 0 {
		return Snapshot{}, errors.New("no path to read files from")
	}
	found, err := p.walk(ctx)
	left := p.maxSize()
	for _, f := range found.files {
		left -= f.info.Size()
	}
	if left < 0 {
		return Snapshot{}, errors.Join(err, p.tooLarge())
	}
	if err = errors.Join(err, p.load(ctx, found.files)); err != nil {
		return Snapshot{}, err
	}
	files := make([]File, len(found.files), len(found.files)+1)
	for i, f := range found.files {
		files[i] = f.File
	}
	var errs []error
	included := p.included(found.files)
	for _, name := range slices.Sorted(maps.Keys(included)) {
		data, err := p.readIncluded(ctx, name, included[name], &left)
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
	return NewSnapshot(files), nil
}

func (p Files) maxSize() int64 { return cmp.Or(p.MaxSize, DefaultMaxSize) }

func (p Files) tooLarge() error {
	return fmt.Errorf("%s: the files are larger than %d MiB together; remove what is no rule, or raise %s",
		p.Paths[0], p.maxSize()>>20, cmp.Or(p.MaxSizeName, "MaxSize"))
}

// load reads the content of the files, also after errors.
func (p Files) load(ctx context.Context, files []foundFile) error {
	var errs []error
	for i := range files {
		f := &files[i]
		var err error
		f.Data, err = p.reader().ReadRegular(ctx, f.realPath, f.Name, f.info, p.maxSize())
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// referrer is a file that refers to another file, and where.
type referrer struct {
	foundFile

	at string
}

// included returns the files that the loaded files refer to, by name, each with all that refer to it.
func (p Files) included(files []foundFile) map[string][]referrer {
	by := map[string][]referrer{}
	if p.Includes == nil {
		return by
	}
	for _, f := range files {
		for _, to := range p.Includes(f.File) {
			by[to.Name] = append(by[to.Name], referrer{f, cmp.Or(to.At, f.Name)})
		}
	}
	return by
}

// readIncluded reads a file if all files that refer to it may include it, and takes its size from left.
func (p Files) readIncluded(ctx context.Context, name string, by []referrer, left *int64) ([]byte, error) {
	realPath, info, _, err := p.reader().Resolve(ctx, name)
	if err != nil {
		return nil, err
	}
	for _, f := range by {
		if !below(realPath, f.root) && !below(realPath, filepath.Dir(f.realPath)) {
			return nil, fmt.Errorf("%s: %s, which it refers to, leads by a symbolic link to %s, outside %s: "+
				"put the file itself into that directory, or a link that stays in it", f.at, name, realPath, f.root)
		}
	}
	if *left -= info.Size(); *left < 0 {
		return nil, p.tooLarge()
	}
	return p.reader().ReadRegular(ctx, realPath, name, info, p.maxSize())
}

// below reports whether a path is in a directory or deeper. Both are absolute and without links.
func below(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && filepath.IsLocal(rel)
}

// isFileName reports whether Read reads a directory's entry with this name.
func (p Files) isFileName(name string) bool {
	ext := filepath.Ext(name)
	return !strings.HasPrefix(name, ".") && (p.EveryFile || ext == ".yaml" || ext == ".yml")
}

// includesPath reports whether Prefix is that of a file with this path below a directory, and leadsOn whether it may be
// that of a file in a directory with this path.
func (p Files) includesPath(path string) bool {
	return p.Prefix == "" || strings.HasPrefix(dotted(path), p.Prefix+".")
}

func (p Files) leadsOn(path string) bool {
	dir, prefix := dotted(path)+".", p.Prefix+"."
	return p.Prefix == "" || strings.HasPrefix(dir, prefix) || strings.HasPrefix(prefix, dir)
}

func dotted(path string) string { return strings.ReplaceAll(filepath.ToSlash(path), "/", ".") }

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
	realPath, info, _, err := w.reader().Resolve(w.ctx, path)
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
		if w.root, _, _, err = w.reader().Resolve(w.ctx, filepath.Dir(path)); err != nil {
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
func (w *walker) entry(path, realPath string, info fs.FileInfo) (found bool) {
	name := info.Name()
	if strings.HasPrefix(name, ".") {
		return false
	}
	below, _ := filepath.Rel(w.given, path)
	wanted := w.isFileName(name) && w.includesPath(below)
	if info.Mode()&fs.ModeSymlink != 0 {
		w.links = append(w.links, path)
		var err error
		if realPath, info, _, err = w.reader().Resolve(w.ctx, path); err != nil {
			return wanted && w.fail(err)
		}
	}
	mode := info.Mode()
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
