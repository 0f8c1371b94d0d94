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

// MaxFileSize is the size of the largest file that Paths reads, in bytes. It is enough for about half a million rules,
// and a path given by mistake does not fill the memory.
const MaxFileSize = 64 << 20

// Paths returns a Source of files and directories, in the given order. From a directory and its subdirectories it reads
// all files *.yaml and *.yml, in the order of their names. It skips names that begin with ".": editors' copies, and the
// "..data" of a Kubernetes ConfigMap, to which visible links lead. It reads a given file whatever its name. It follows
// symbolic links. It reads a file only once, under the first name that leads to it, so links may form a loop.
//
// It is an error if a path does not exist, a file cannot be read or is larger than MaxFileSize, or a given directory
// has no file to read.
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
		data, err := p.readIncluded(ctx, name, included[name])
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

// load reads the content of the files, also after errors.
func (p Files) load(ctx context.Context, files []foundFile) error {
	var errs []error
	for i := range files {
		f := &files[i]
		var err error
		f.Data, err = p.reader().ReadRegular(ctx, f.realPath, f.Name, f.info, MaxFileSize)
		if errors.Is(err, fs.ErrNotExist) { // a link has just been changed, and its old target is gone
			if f.realPath, f.info, err = p.reader().Resolve(ctx, f.Name, nil); err == nil {
				f.Data, err = p.reader().ReadRegular(ctx, f.realPath, f.Name, f.info, MaxFileSize)
			}
		}
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

// readIncluded reads a file if all files that refer to it may include it.
func (p Files) readIncluded(ctx context.Context, name string, by []referrer) ([]byte, error) {
	realPath, info, err := p.reader().Resolve(ctx, name, nil)
	if err != nil {
		return nil, err
	}
	for _, f := range by {
		if !below(realPath, f.root) && !below(realPath, filepath.Dir(f.realPath)) {
			return nil, fmt.Errorf("%s: %s, which it refers to, leads by a symbolic link to %s, outside %s: "+
				"put the file itself into that directory, or a link that stays in it", f.at, name, realPath, f.root)
		}
	}
	return p.reader().ReadRegular(ctx, realPath, name, info, MaxFileSize)
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
