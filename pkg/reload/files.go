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
	// Rest, if not nil, is called after each small amount of reading, so that a process that serves requests can pause.
	Rest func()
	// EveryFile reads every regular file of a directory whose name does not begin with ".", and takes a directory without
	// files for one that is empty.
	EveryFile bool
	// Prefix, if not empty, leaves out the files of a directory whose path below it, with "." in place of "/", does not
	// begin with Prefix and ".".
	Prefix string
	// Absent, if not nil, returns whether a path that does not exist has no files. Otherwise that is an error.
	Absent func() bool
	// Reader reads the files; nil means fileread.Default. A file system that hangs is an error that wraps a
	// fileread.HungError.
	Reader *fileread.Reader
}

// Include is a file that another file refers to.
type Include struct {
	Name string // a path that can be opened
	At   string // where the other file refers to it, for messages; empty: the other file's name
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

// Read implements Source. Its error names every path that failed. It returns soon after ctx ends, even if a file system
// hangs.
func (p Files) Read(ctx context.Context) (Snapshot, error) {
	return fileread.Do(ctx, p.reader(), func(s *fileread.Session) (Snapshot, error) { return p.read(ctx, s) })
}

func (p Files) read(ctx context.Context, s *fileread.Session) (Snapshot, error) {
	found, err := p.found(ctx, s)
	if err != nil {
		return Snapshot{}, err
	}
	if len(found) == 0 && len(p.Paths) == 0 {
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

// foundFile is a file at the paths. It may include files from the given directory, or that of the given file, and from
// its own directory; both are without links.
type foundFile struct {
	File

	root, dir string
}

// found returns the files at the paths, also after errors.
func (p Files) found(ctx context.Context, s *fileread.Session) ([]foundFile, error) {
	r := fileReader{session: s, rest: p.rest}
	err := walk(ctx, s, p, p.Paths, &r)
	return r.files, err
}

// include is a file that other files refer to.
type include struct {
	name string
	by   []referrer
}

// referrer is a file that refers to another file, and where.
type referrer struct {
	foundFile

	at string
}

// included returns the files that the files refer to, sorted by name, each once.
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

// read reads the file if all files that refer to it may include it.
func (i include) read(s *fileread.Session, rest func()) ([]byte, error) {
	realPath, info, err := s.Resolve(i.name, nil)
	if err != nil {
		return nil, err
	}
	for _, f := range i.by {
		if !below(realPath, f.root) && !below(realPath, f.dir) {
			return nil, fmt.Errorf("%s: %s, which it refers to, leads by a symbolic link to %s, outside %s: "+
				"put the file itself into that directory, or a link that stays in it", f.at, i.name, realPath, f.root)
		}
	}
	return s.ReadFile(realPath, i.name, info, MaxFileSize, rest)
}

// below reports whether a path is in a directory or deeper. Both are absolute and without links.
func below(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && filepath.IsLocal(rel)
}

// fileReader is a visitor that reads files.
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
