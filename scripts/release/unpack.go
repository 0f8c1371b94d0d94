package main

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path/filepath"
)

// unpack writes the files of a tar file below a directory.
func unpack(archive, dir string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // it was only read
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case !filepath.IsLocal(h.Name):
			return errors.New(h.Name + " is outside of the archive")
		case h.Typeflag != tar.TypeReg:
			continue
		}
		to := filepath.Join(dir, filepath.FromSlash(h.Name))
		if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
			return err
		}
		data, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		if err := os.WriteFile(to, data, 0o600); err != nil {
			return err
		}
	}
}
