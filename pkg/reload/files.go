package reload

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/weir-ratelimit/weir/internal/fileread"
	"github.com/weir-ratelimit/weir/internal/panics"
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
}

// Include is a file that another file refers to.
type Include struct {
	Name string // a path that can be opened
	At   string // where the other file refers to it, for messages; empty: the other file's name
}

// run runs f, which reads the files and calls at before each step, in a goroutine of its own.
func run[T any](ctx context.Context, p Files, f func(at func(path string)) (T, error)) (T, error) {
	return fileread.Do(ctx, fileread.Default, strings.Join(p.Paths, ", "), f)
}

// Read implements Source. Its error names every path that failed. A file system that does not answer for 10 s, as NFS
// may, is an error, too. Read returns soon after ctx ends, whatever the file system does.
func (p Files) Read(ctx context.Context) (Snapshot, error) {
	if len(p.Paths) == 0 {
		return Snapshot{}, errors.New("no path to read files from")
	}
	return run(ctx, p, func(at func(path string)) (Snapshot, error) {
		w := p.walk(ctx, at)
		left := w.load()
		if err := w.err(); err != nil {
			return Snapshot{}, err
		}
		files := make([]File, len(w.files), len(w.files)+1)
		for i, f := range w.files {
			files[i] = f.File
		}
		included := w.included()
		for _, name := range slices.Sorted(maps.Keys(included)) {
			data, err := w.readIncluded(name, included[name], &left)
			switch {
			case err == nil:
				files = append(files, File{Name: name, Data: data, Included: true})
			case !errors.Is(err, fs.ErrNotExist):
				w.fail(err)
			}
		}
		if err := w.err(); err != nil {
			return Snapshot{}, err
		}
		return NewSnapshot(files), nil
	})
}

func (p Files) maxSize() int64 { return cmp.Or(p.MaxSize, DefaultMaxSize) }

func (p Files) tooLarge() error {
	return fmt.Errorf("%s: the files are larger than %d MiB together; remove files without rules, or raise %s",
		p.Paths[0], p.maxSize()>>20, cmp.Or(p.MaxSizeName, "MaxSize"))
}

// load reads the content of the files, also after errors, unless they are too large. It returns how many bytes more may
// be read.
func (w *walker) load() (left int64) {
	left = w.maxSize()
	for _, f := range w.files {
		left -= f.info.Size()
	}
	if left < 0 {
		w.fail(w.tooLarge())
		return left
	}
	for i := 0; i < len(w.files) && w.ctx.Err() == nil; i++ {
		f := &w.files[i]
		w.at(f.Name)
		var err error
		if f.Data, err = fileread.Regular(f.realPath, f.Name, f.info, w.maxSize()); err != nil {
			w.fail(err)
		}
	}
	return left
}

// referrer is a file that refers to another file, and where.
type referrer struct {
	foundFile

	at string
}

// included returns the files that the loaded files refer to, by name, each with all that refer to it.
func (w *walker) included() map[string][]referrer {
	by := map[string][]referrer{}
	if w.Includes == nil {
		return by
	}
	for _, f := range w.files {
		for _, to := range w.Includes(f.File) {
			by[to.Name] = append(by[to.Name], referrer{f, cmp.Or(to.At, f.Name)})
		}
	}
	return by
}

// readIncluded reads a file if all files that refer to it may include it, and takes its size from left.
func (w *walker) readIncluded(name string, by []referrer, left *int64) ([]byte, error) {
	realPath, info, err := w.resolve(name)
	if err != nil {
		return nil, err
	}
	for _, f := range by {
		if !below(realPath, f.root) && !below(realPath, filepath.Dir(f.realPath)) {
			return nil, fmt.Errorf("%s: %s, which it refers to, leads by a symbolic link to %s, outside %s: "+
				"put the file itself into that directory, or a link to a file in it", f.at, name, realPath, f.root)
		}
	}
	if *left -= info.Size(); *left < 0 {
		return nil, w.tooLarge()
	}
	return fileread.Regular(realPath, name, info, w.maxSize())
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

// foundFile is a file that a walk has found. Its Data is not read yet.
type foundFile struct {
	File

	realPath string // absolute, without symbolic links
	info     fs.FileInfo
	root     string // the directory that it may include files from, besides its own: the given one, or the given file's
}

// walker goes through the paths of Files. It is used by one goroutine.
type walker struct {
	Files

	ctx   context.Context //nolint:containedctx // of one walk
	at    func(path string)
	given string          // the path of the walk that is under way
	root  string          // see foundFile
	seen  map[string]bool // by real path; true: it is a file, or holds one
	dirs  map[string]bool // of the paths, the files, and what was listed
	files []foundFile     // to be read: each real file once, under the first name that leads to it
	errs  []error
}

// walk goes through all paths, also after errors.
func (p Files) walk(ctx context.Context, at func(path string)) *walker {
	w := &walker{Files: p, ctx: ctx, at: at, seen: map[string]bool{}, dirs: map[string]bool{}}
	for _, path := range p.Paths {
		w.start(filepath.Clean(path))
	}
	return w
}

// err returns all errors of the walk.
func (w *walker) err() error { return cmp.Or(w.ctx.Err(), errors.Join(w.errs...)) }

// fail collects an error. It returns true, as if there were a file: "no file" would be a second error about the same.
func (w *walker) fail(err error) (found bool) {
	w.errs = append(w.errs, err)
	return true
}

// resolve returns the path without symbolic links, and the file there.
func (w *walker) resolve(path string) (realPath string, info fs.FileInfo, err error) {
	w.at(path)
	if info, err = os.Stat(path); err != nil {
		return "", nil, err
	}
	if realPath, err = filepath.Abs(path); err == nil {
		realPath, err = filepath.EvalSymlinks(realPath)
	}
	return realPath, info, err
}

func (w *walker) start(path string) {
	w.given = path
	if dir, _, err := w.resolve(filepath.Dir(path)); err == nil {
		w.dirs[dir] = true
	}
	realPath, info, err := w.resolve(path)
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
		if w.root, _, err = w.resolve(filepath.Dir(path)); err != nil {
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
	w.seen[realDir], w.dirs[realDir] = false, true // for a link from below to here
	w.at(dir)
	entries, err := os.ReadDir(realDir)
	if err != nil {
		return w.fail(err)
	}
	for _, e := range entries {
		if w.ctx.Err() != nil {
			return true
		}
		w.at(filepath.Join(dir, e.Name()))
		if info, err := e.Info(); err == nil { // else it has just been removed
			found = w.entry(filepath.Join(dir, e.Name()), filepath.Join(realDir, e.Name()), info) || found
		}
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
		var err error
		if realPath, info, err = w.resolve(path); err != nil {
			return wanted && w.fail(err)
		}
	}
	mode := info.Mode()
	switch {
	case mode.IsDir():
		return w.leadsOn(below) && w.list(path, realPath)
	case wanted && (mode.IsRegular() || !w.EveryFile):
		return w.add(path, realPath, info)
	default:
		return false
	}
}

func (w *walker) add(path, realPath string, info fs.FileInfo) (found bool) {
	if !w.seen[realPath] {
		w.seen[realPath], w.dirs[filepath.Dir(realPath)] = true, true
		w.files = append(w.files, foundFile{File{Name: path}, realPath, info, w.root})
	}
	return true
}

// Watch looks at the files once a second, and soon after each event of fsnotify. Looking takes at most a tenth of
// the time.
const (
	watchSoon  = 10 * time.Millisecond
	watchShare = 10
)

var watchEvery = time.Second // a variable for tests

// look is what Watch sees of the files.
type look struct {
	files, included []byte   // their names, sizes and times
	names           []string // of the files that these include
	dirs            []string // where names may change
	err             string
}

// Watch implements Source: it looks at the names, sizes and times of the files, which is the same for every file system
// and for every way to write a file. It does so when fsnotify reports a change in their directories, and each second
// for what fsnotify does not see, such as changes in a network's file system.
func (p Files) Watch(ctx context.Context, changed chan<- struct{}) {
	notify, err := fsnotify.NewBufferedWatcher(64)
	if err != nil { // no inotify instance is left
		notify = &fsnotify.Watcher{}
	} else {
		defer panics.Go("end of a watch", func() { _ = notify.Close() }) // it waits for a directory that hangs
	}
	isWatched := err == nil
	var last *look
	for ctx.Err() == nil {
		start := time.Now()
		next, err := run(ctx, p, func(at func(path string)) (*look, error) {
			next := p.look(ctx, at, last)
			if isWatched && follow(notify, next.dirs, at) { // files may have come into a directory before
				next = p.look(ctx, at, last)
			}
			return next, ctx.Err()
		})
		if err == nil {
			if last == nil || next.err != last.err || !bytes.Equal(next.files, last.files) ||
				!bytes.Equal(next.included, last.included) {
				Hint(changed)
			}
			last = next
		}
		rest := min(max(watchSoon, watchShare*time.Since(start)), watchEvery)
		select {
		case <-ctx.Done():
		case <-notify.Events:
		case <-notify.Errors: //nolint:errcheck // events were lost
		case <-time.After(watchEvery):
		}
		pause(ctx, rest)
		for len(notify.Events) > 0 {
			<-notify.Events // the next look sees the same change
		}
	}
}

// follow has the watcher report changes in these directories alone, and reports whether one of them is new. Where it
// cannot, a look each second has to do.
func follow(notify *fsnotify.Watcher, dirs []string, at func(path string)) (isNew bool) {
	known := notify.WatchList()
	for _, dir := range known {
		if !slices.Contains(dirs, dir) {
			_ = notify.Remove(dir)
		}
	}
	for _, dir := range dirs {
		at(dir)
		err := notify.Add(dir) // a known one, too: another directory may have taken its place
		isNew = isNew || err == nil && !slices.Contains(known, dir)
	}
	return isNew
}

// look returns what there is now. It reads the files again, for what they include, only if they have changed.
func (p Files) look(ctx context.Context, at func(path string), last *look) *look {
	w := p.walk(ctx, at)
	now := &look{dirs: slices.Sorted(maps.Keys(w.dirs))}
	if err := w.err(); err != nil {
		now.err = err.Error()
	}
	for _, f := range w.files {
		now.files = appendSeen(now.files, f.Name+" "+f.realPath, f.info)
	}
	if last != nil && bytes.Equal(now.files, last.files) {
		now.names = last.names
	} else if p.Includes != nil {
		w.load()
		now.names = slices.Sorted(maps.Keys(w.included()))
	}
	for _, name := range now.names {
		at(name)
		if info, err := os.Stat(name); err == nil {
			now.included = appendSeen(now.included, name, info)
		}
	}
	return now
}

// appendSeen appends what is the same for two looks at a file that has not been written to.
func appendSeen(to []byte, name string, info fs.FileInfo) []byte {
	return fmt.Appendf(to, "%q %d %d\n", name, info.Size(), info.ModTime().UnixNano())
}
