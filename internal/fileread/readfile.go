package fileread

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

const (
	// maxLinks is how many symbolic links one path may have, as in Linux.
	maxLinks = 40
	// maxSmall is the size of the largest file that ReadFile reads, in bytes.
	maxSmall = 16 << 20
)

// ReadFile is os.ReadFile for a file system that may hang. The file may have at most 16 MiB: it is for certificates,
// keys and passwords. It returns a HungError if a step takes longer than Timeout, and ctx's error if ctx ends.
func ReadFile(ctx context.Context, path string) ([]byte, error) { return Default.ReadFile(ctx, path) }

// ReadFile is the function ReadFile with this Reader.
func (r *Reader) ReadFile(ctx context.Context, path string) ([]byte, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	info, err := Step(ctx, r, abs, nil, func() (fs.FileInfo, error) { return os.Stat(path) })
	var of *fs.PathError
	switch {
	case errors.As(err, &of):
		return nil, &fs.PathError{Op: "open", Path: path, Err: of.Err} // like os.ReadFile
	case err != nil:
		return nil, err
	case info.IsDir():
		return nil, &fs.PathError{Op: "read", Path: path, Err: syscall.EISDIR}
	case info.Size() > maxSmall:
		return nil, fmt.Errorf("%s: larger than %d MiB, the most that is read of it", path, maxSmall>>20)
	}
	return r.read(ctx, abs, path, info, maxSmall)
}

// X509KeyPair is tls.LoadX509KeyPair with ReadFile.
func X509KeyPair(ctx context.Context, certFile, keyFile string) (none tls.Certificate, err error) {
	cert, err := ReadFile(ctx, certFile)
	if err != nil {
		return none, err
	}
	key, err := ReadFile(ctx, keyFile)
	if err != nil {
		return none, err
	}
	return tls.X509KeyPair(cert, key)
}

// CertPool returns the certificates in PEM of a file, read with ReadFile. A file without any is an error.
func CertPool(ctx context.Context, file string) (*x509.CertPool, error) {
	text, err := ReadFile(ctx, file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, errors.New(file + " has no certificate in PEM")
	}
	return pool, nil
}

// ClientTLS returns the configuration of a client of TLS 1.2 or newer, whose files are read with ReadFile: the
// authorities of the server's certificate, "" for those of the system, and the client's own certificate and key, "" for
// none. An error names the option: prefix and ca, or cert and key.
func ClientTLS(ctx context.Context, prefix, ca, cert, key string) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	var err error
	if ca != "" {
		if config.RootCAs, err = CertPool(ctx, ca); err != nil {
			return nil, fmt.Errorf("%sca: %w", prefix, err)
		}
	}
	if cert != "" {
		own, err := X509KeyPair(ctx, cert, key)
		if err != nil {
			return nil, fmt.Errorf("%scert, %[1]skey: %w", prefix, err)
		}
		config.Certificates = []tls.Certificate{own}
	}
	return config, nil
}

// Resolve returns the path without symbolic links, and the file there. onLink, if not nil, is called with each symbolic
// link that it follows, and with the first path that does not exist. Errors name the path as it was given.
func (r *Reader) Resolve(
	ctx context.Context, path string, onLink func(path string),
) (realPath string, info fs.FileInfo, err error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", nil, err
	}
	type result struct {
		resolver

		path string
		info fs.FileInfo
		err  error
	}
	got, err := Step(ctx, r, abs, nil, func() (got result, _ error) {
		got.path, got.info, got.err = got.follow(abs)
		return got, nil
	})
	if err != nil {
		return "", nil, named(err, path)
	}
	if onLink != nil {
		for _, link := range got.links {
			onLink(link)
		}
	}
	if of, ok := errors.AsType[*fs.PathError](got.err); ok {
		got.err = &fs.PathError{Op: "stat", Path: path, Err: of.Err}
	}
	return got.path, got.info, got.err
}

// resolver collects the symbolic links that it follows, and the first path that does not exist.
type resolver struct{ links []string }

// follow resolves an absolute path link by link.
func (r *resolver) follow(path string) (string, fs.FileInfo, error) {
	dir, base := filepath.Dir(path), filepath.Base(path)
	if dir == path {
		info, err := os.Lstat(path)
		return path, info, err
	}
	dir, _, err := r.follow(dir)
	if err != nil {
		return "", nil, err
	}
	here := filepath.Join(dir, base)
	info, err := os.Lstat(here)
	if err == nil && info.Mode()&fs.ModeSymlink == 0 {
		return here, info, nil
	}
	r.links = append(r.links, here)
	if err != nil {
		return "", nil, err
	}
	if len(r.links) > maxLinks {
		return "", nil, &fs.PathError{Op: "stat", Path: here, Err: syscall.ELOOP}
	}
	target, err := os.Readlink(here)
	if err != nil {
		return "", nil, err
	}
	if !filepath.IsAbs(target) {
		target = filepath.Join(dir, target)
	}
	return r.follow(target)
}

// Lstat is os.Lstat of an absolute path. Errors name it as name.
func (r *Reader) Lstat(ctx context.Context, path, name string) (fs.FileInfo, error) {
	info, err := Step(ctx, r, path, nil, func() (fs.FileInfo, error) { return os.Lstat(path) })
	return info, named(err, name)
}

// ReadDir is os.ReadDir of a path that Resolve returned. Errors name it as name.
func (r *Reader) ReadDir(ctx context.Context, realPath, name string) ([]fs.DirEntry, error) {
	entries, err := Step(ctx, r, realPath, nil, func() ([]fs.DirEntry, error) { return os.ReadDir(realPath) })
	return entries, named(err, name)
}

// ReadRegular reads a regular file of at most limit bytes, at a path that Resolve returned with info. Errors name it as
// name.
func (r *Reader) ReadRegular(
	ctx context.Context, realPath, name string, info fs.FileInfo, limit int64,
) ([]byte, error) {
	switch {
	case !info.Mode().IsRegular(): // before it is opened: opening a pipe blocks
		return nil, fmt.Errorf("%s: not a regular file", name)
	case info.Size() > limit:
		return nil, fmt.Errorf("%s: larger than %d MiB, the most that is read of one file", name, limit>>20)
	}
	return r.read(ctx, realPath, name, info, limit)
}

func (r *Reader) read(ctx context.Context, path, name string, info fs.FileInfo, limit int64) ([]byte, error) {
	data, err := Step(ctx, r, path, info, func() ([]byte, error) {
		f, err := os.Open(path) //nolint:gosec // reading the files that the operator names is what this is for
		if err != nil {
			return nil, err
		}
		defer f.Close() //nolint:errcheck // nothing was written
		// The buffer grows if it has less than MinRead free.
		all := bytes.NewBuffer(make([]byte, 0, info.Size()+bytes.MinRead))
		_, err = all.ReadFrom(io.LimitReader(f, limit+1))
		return all.Bytes(), err
	})
	switch {
	case err != nil:
		return nil, named(err, name)
	case int64(len(data)) > limit:
		return nil, fmt.Errorf("%s: larger than %d MiB, the most that is read of one file", name, limit>>20)
	default:
		return data, nil
	}
}

// named returns an error about a path without links as one about the name that the user gave.
func named(err error, name string) error {
	var of *fs.PathError
	var hung *HungError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &of):
		return &fs.PathError{Op: of.Op, Path: name, Err: of.Err}
	case errors.As(err, &hung):
		if abs, absErr := filepath.Abs(name); absErr == nil && abs != hung.Path {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return err
}
