package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// file is a file in an archive or in the image.
type file struct {
	name string // with slashes, relative to the root
	mode int64
	link string // target of a symbolic link
	data []byte
}

// releaseFiles returns the program with its symbolic link, and the documents of a release.
func releaseFiles(b *build) (program, documents []file, err error) {
	data, err := os.ReadFile(b.binary)
	if err != nil {
		return nil, nil, err
	}
	program = []file{
		{name: "weir", mode: 0o755, data: data},
		{name: "ratelimit", mode: 0o777, link: "weir"}, // under this name, the program behaves as envoyproxy/ratelimit
	}
	for _, name := range []string{"LICENSE", "README.md", "CHANGELOG.md"} {
		data, err := os.ReadFile(filepath.Join(b.src, name))
		if err != nil {
			return nil, nil, err
		}
		documents = append(documents, file{name: name, mode: 0o644, data: data})
	}
	for _, l := range b.licenses {
		documents = append(documents, file{name: path.Join("licenses", l.module, l.name), mode: 0o644, data: l.text})
	}
	return program, documents, nil
}

// writeArchive writes the tar.gz of a platform. All files are in a folder of its name.
func writeArchive(b *build, to string) error {
	program, documents, err := releaseFiles(b)
	if err != nil {
		return err
	}
	files := slices.Concat(program, documents)
	folder := strings.TrimSuffix(filepath.Base(to), ".tar.gz")
	for i := range files {
		files[i].name = path.Join(folder, files[i].name)
	}
	data, err := tarOf(files, b.date)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := z.Write(data); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	return os.WriteFile(to, out.Bytes(), 0o644) //nolint:gosec // a release is public
}

// tarOf returns a tar file that depends only on the files and the date: sorted, with parent folders, owned by root.
func tarOf(files []file, date time.Time) ([]byte, error) {
	files = slices.Clone(files)
	folders := map[string]bool{".": true, "/": true}
	for _, f := range files {
		for dir := path.Dir(f.name); !folders[dir]; dir = path.Dir(dir) {
			folders[dir] = true
			files = append(files, file{name: dir + "/", mode: 0o755})
		}
	}
	slices.SortFunc(files, func(a, b file) int { return cmp.Compare(a.name, b.name) })
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.data)), ModTime: date, Format: tar.FormatUSTAR}
		switch {
		case strings.HasSuffix(f.name, "/"):
			h.Typeflag = tar.TypeDir
		case f.link != "":
			h.Typeflag, h.Linkname = tar.TypeSymlink, f.link
		default:
			h.Typeflag = tar.TypeReg
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}

// writeChecksums writes the checksums of all files in the form of sha256sum --check.
func writeChecksums(dir string) error {
	entries, err := os.ReadDir(dir) // sorted
	if err != nil {
		return err
	}
	var out bytes.Buffer
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&out, "%x  %s\n", sha256.Sum256(data), e.Name())
	}
	return os.WriteFile(filepath.Join(dir, checksumFile), out.Bytes(), 0o644) //nolint:gosec // a release is public
}

// compare returns an error if the checksums of two releases of the same commit differ.
func compare(first, second string) error {
	a, err := os.ReadFile(filepath.Join(first, checksumFile))
	if err != nil {
		return err
	}
	b, err := os.ReadFile(filepath.Join(second, checksumFile))
	if err == nil && !bytes.Equal(a, b) {
		err = fmt.Errorf("two builds of the same commit differ:\n%s\n%s", a, b)
	}
	return err
}
