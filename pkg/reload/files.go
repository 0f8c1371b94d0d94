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
	"github.com/weir-ratelimit/weir/internal/sleep"
)

// DefaultMaxSize is the maximum total size of the files that Paths reads, in bytes. It is enough for 200,000 rules, and
// keeps a mistaken path from filling the memory.
const DefaultMaxSize = 16 << 20

// Paths returns a Source of files and directories, in the given order. From a directory and its subdirectories it reads
// all files *.yaml and *.yml, ordered by name. It skips names that begin with ".", such as editors' copies and the
// "..data" of a Kubernetes ConfigMap, which the visible links point into. It reads a given file whatever its name. It
// follows symbolic links, also in loops, and reads each file once, under the first name that leads to it.
//
// Read returns an error if a path does not exist, a file cannot be read, the files together exceed DefaultMaxSize, or
// a given directory has no file to read.
func Paths(paths ...string) Source { return Files{Paths: paths} }

// Files is the Source that Paths returns, with options.
type Files struct {
	Paths []string
	// Includes, if not nil, returns the files that a file refers to, with paths that can be opened. The Source also reads
	// and watches these files, each once, and returns them after the others with File.Included. It leaves out a missing
	// file, which Compile can report better. It is an error if symbolic links lead outside both the given path at which
	// the referring file was found and the directory of that file.
	Includes func(File) []Include
	// EveryFile reads all regular files of a directory whose names do not begin with ".", and allows an empty directory.
	EveryFile bool
	// Prefix, if not empty, selects files of a given directory: those whose path in the directory, with "." in place of
	// "/", begins with Prefix and ".".
	Prefix string
	// MaxSize is the maximum total size of the files, in bytes; 0 means DefaultMaxSize. Read does not read files beyond
	// MaxSize, and returns an error that advises to raise the option MaxSizeName; empty means "MaxSize".
	MaxSize     int64
	MaxSizeName string
	// Absent, if not nil and if it returns true, allows given paths that do not exist.
	Absent func() bool
}

// Include is a file that another file refers to.
type Include struct {
	Name string // a path that can be opened
	At   string // position of the reference, for messages; empty means the name of the other file
}

// run runs f in a separate goroutine. f reads the files, and must call at before each step with the path of the step.
func run[T any](ctx context.Context, p Files, f func(at func(path string)) (T, error)) (T, error) {
	return fileread.Do(ctx, fileread.Default, strings.Join(p.Paths, ", "), f)
}

// Read implements Source. Its error names every path that failed. It also returns an error if the file system, such as
// NFS, hangs for 10 s. Read returns soon after ctx ends, even while the file system hangs.
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

// load reads the content of the files, unless they are too large. left is the number of bytes that may still be read.
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

// referrer is a file that refers to another file, and the position of the reference.
type referrer struct {
	foundFile

	at string
}

// included returns the names of the files that the loaded files refer to, each with all of its referrers.
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

// readIncluded reads a file if all of its referrers may include it, and subtracts its size from left.
func (w *walker) readIncluded(name string, by []referrer, left *int64) ([]byte, error) {
	realPath, info, err := w.resolve(name)
	if err != nil {
		return nil, err
	}
	for _, f := range by {
		if !below(realPath, f.root) && !below(realPath, filepath.Dir(f.realPath)) {
			return nil, fmt.Errorf("%s: the included file %s resolves through a symbolic link to %s, outside %s: "+
				"put the file itself into that directory, or a link to a file in it", f.at, name, realPath, f.root)
		}
	}
	if *left -= info.Size(); *left < 0 {
		return nil, w.tooLarge()
	}
	return fileread.Regular(realPath, name, info, w.maxSize())
}

// below reports whether a path is in a directory or its subdirectories. Both must be absolute and without links.
func below(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && filepath.IsLocal(rel)
}

// isFileName reports whether Read reads a file with this name in a directory.
func (p Files) isFileName(name string) bool {
	ext := filepath.Ext(name)
	return !strings.HasPrefix(name, ".") && (p.EveryFile || ext == ".yaml" || ext == ".yml")
}

// includesPath reports whether Prefix selects the file with this path in a given directory.
func (p Files) includesPath(path string) bool {
	return p.Prefix == "" || strings.HasPrefix(dotted(path), p.Prefix+".")
}

// leadsOn reports whether Prefix may select a file in the subdirectory with this path.
func (p Files) leadsOn(path string) bool {
	dir, prefix := dotted(path)+".", p.Prefix+"."
	return p.Prefix == "" || strings.HasPrefix(dir, prefix) || strings.HasPrefix(prefix, dir)
}

func dotted(path string) string { return strings.ReplaceAll(filepath.ToSlash(path), "/", ".") }

// foundFile is a file that a walk has found. load sets its Data.
type foundFile struct {
	File

	realPath string // absolute, without symbolic links
	info     fs.FileInfo
	root     string // given directory, or directory of the given file; it may hold included files
}

// walker finds the files of Files. It is not safe for concurrent use.
type walker struct {
	Files

	ctx   context.Context //nolint:containedctx // of one walk
	at    func(path string)
	given string          // the current path of Files.Paths
	root  string          // see foundFile
	seen  map[string]bool // by real path of a file or directory; true for a file, or a directory with a file
	dirs  map[string]bool // real paths of the directories that Watch must watch
	files []foundFile     // each real file once, under the first name that leads to it
	errs  []error
}

// walk finds the files of all paths, also after an error.
func (p Files) walk(ctx context.Context, at func(path string)) *walker {
	w := &walker{Files: p, ctx: ctx, at: at, seen: map[string]bool{}, dirs: map[string]bool{}}
	for _, path := range p.Paths {
		w.start(filepath.Clean(path))
	}
	return w
}

func (w *walker) err() error { return cmp.Or(w.ctx.Err(), errors.Join(w.errs...)) }

// fail collects an error. It returns true, as if it had found a file, to avoid a second error "no file".
func (w *walker) fail(err error) (found bool) {
	w.errs = append(w.errs, err)
	return true
}

// resolve returns the path without symbolic links, and the file's info.
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

// list visits a directory's entries, and reports whether the directory or a subdirectory has a file to read.
func (w *walker) list(dir, realDir string) (found bool) {
	if found, ok := w.seen[realDir]; ok {
		return found
	}
	w.seen[realDir], w.dirs[realDir] = false, true // so that a link from a subdirectory to here ends
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
		if info, err := e.Info(); err == nil { // an error means that the entry was just removed
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

// Watch lists the files every watchEvery, and soon after an event of fsnotify. After a listing it pauses for watchShare
// times as long as the listing took, at least for watchSoon and at most for watchEvery.
const (
	watchSoon  = 10 * time.Millisecond
	watchShare = 10
)

var watchEvery = time.Second // a variable for tests

// listing is the state of the files that Watch compares.
type listing struct {
	files, included []byte   // names, sizes and times of the files, and of the included files
	names           []string // names of the included files
	dirs            []string // directories in which names may change
	err             string
}

// Watch implements Source: it compares the names, sizes and times of the files, which works on every file system and
// for every way to write a file. It does so when fsnotify reports a change in the files' directories, and each second,
// because fsnotify misses some changes, such as those in network file systems.
func (p Files) Watch(ctx context.Context, changed chan<- struct{}) {
	notify, err := fsnotify.NewBufferedWatcher(64)
	if err != nil { // no inotify instance is left
		notify = &fsnotify.Watcher{}
	} else {
		defer panics.Go("end of a watch", func() { _ = notify.Close() }) // Close may hang with the file system
	}
	isWatched := err == nil
	var last *listing
	for ctx.Err() == nil {
		start := time.Now()
		next, err := run(ctx, p, func(at func(path string)) (*listing, error) {
			next := p.listing(ctx, at, last)
			if isWatched && follow(notify, next.dirs, at) { // list again: files may have been added before the watch
				next = p.listing(ctx, at, last)
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
		_ = sleep.For(ctx, rest) // the loop checks ctx
		for len(notify.Events) > 0 {
			<-notify.Events // the next listing shows the same changes
		}
	}
}

// follow makes the watcher watch these directories only, and reports whether it added a directory. A directory that it
// cannot watch is still listed every second.
func follow(notify *fsnotify.Watcher, dirs []string, at func(path string)) (isNew bool) {
	known := notify.WatchList()
	for _, dir := range known {
		if !slices.Contains(dirs, dir) {
			_ = notify.Remove(dir)
		}
	}
	for _, dir := range dirs {
		at(dir)
		err := notify.Add(dir) // also a known path, because another directory may now have this path
		isNew = isNew || err == nil && !slices.Contains(known, dir)
	}
	return isNew
}

// listing returns the current listing. It reads the files, to find the included files, only if the files have changed.
func (p Files) listing(ctx context.Context, at func(path string), last *listing) *listing {
	w := p.walk(ctx, at)
	now := &listing{dirs: slices.Sorted(maps.Keys(w.dirs))}
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

// appendSeen appends the name, size and time of a file.
func appendSeen(to []byte, name string, info fs.FileInfo) []byte {
	return fmt.Appendf(to, "%q %d %d\n", name, info.Size(), info.ModTime().UnixNano())
}
