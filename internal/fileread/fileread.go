// Package fileread reads files on a file system that may hang, because an NFS server is away or a disk is lost. On
// such a file system a read, or even a stat, may never return, and nothing can end it.
//
// [ReadFile] reads one small file:
//
//	key, err := fileread.ReadFile(ctx, "/run/secrets/key")
//
// Anything else is done in steps: look up one path, list one directory, read one file. [Step] runs one of them in a
// goroutine of its own. It gives up when the step takes longer than Timeout, or when its context ends, and leaves the
// goroutine behind, which ends when the step returns. Until then, every other step on the same file returns a
// HungError at once, so that goroutines do not pile up.
package fileread

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Timeout is how long one step may take. An NFS server usually restarts in less.
const Timeout = 10 * time.Second

// maxHung is the most steps that may hang at once. Each file has at most one, but a directory may get ever more files.
const maxHung = 100

// HungError reports a step that takes longer than Reader.Timeout.
type HungError struct {
	Path  string
	Since time.Time // when the step began
}

// Error implements error. It names the file and when the step began.
func (e *HungError) Error() string {
	return fmt.Sprintf("%s: reading it has not returned since %s: the file system hangs; it is read again when that "+
		"returns, or when another file takes its place", e.Path, e.Since.UTC().Format(time.RFC3339))
}

// Reader begins no second step on a file while one hangs. The zero value is ready to use. It is safe for concurrent
// use. Use Default, unless you need another Timeout.
type Reader struct {
	// Timeout is how long one step may take; 0 means the constant Timeout.
	Timeout time.Duration

	mu    sync.Mutex
	steps []*step // under way; several at one path only if another file has taken it
}

// Default is the process's Reader.
var Default = &Reader{}

// step is a step under way.
type step struct {
	path  string
	file  fs.FileInfo // the file at the path when the step began; nil if the step looks that up
	since time.Time
	done  chan struct{}
}

func (r *Reader) timeout() time.Duration { return cmp.Or(r.Timeout, Timeout) }

// Hung returns how many steps have taken longer than Timeout and have not returned.
func (r *Reader) Hung() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.steps {
		if time.Since(s.since) >= r.timeout() {
			n++
		}
	}
	return n
}

// Step runs f, which works on the file at the path, in a goroutine of its own, and returns f's results.
// file is the file that is known to be there, or nil if f looks it up; Step does not wait for a step that hangs on
// another file at the same path, so that a file can be replaced. Step returns a HungError if f, or an earlier step on
// the file, hangs, and ctx's error if ctx ends. Then f goes on until its system calls return, so it must not write to
// anything that the caller reads after an error. A panic in f becomes an error.
func Step[T any](
	ctx context.Context, r *Reader, path string, file fs.FileInfo, f func() (T, error),
) (none T, err error) {
	type result struct {
		value T
		err   error
	}
	now, err := r.begin(ctx, path, file)
	if err != nil {
		return none, err
	}
	done := make(chan result, 1)
	go func() {
		var got result
		defer func() {
			if p := recover(); p != nil {
				got.err = fmt.Errorf("reading panicked: %v", p)
			}
			r.end(now)
			done <- got
		}()
		got.value, got.err = f()
	}()
	select {
	case got := <-done:
		return got.value, got.err
	case <-time.After(r.timeout()):
		return none, &HungError{Path: path, Since: now.since}
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

// begin waits for the step on the file that is under way, and then registers another.
func (r *Reader) begin(ctx context.Context, path string, file fs.FileInfo) (*step, error) {
	for ctx.Err() == nil {
		before, now, err := r.tryBegin(path, file)
		if err != nil || now != nil {
			return now, err
		}
		select {
		case <-before.done:
		case <-time.After(r.timeout() - time.Since(before.since)):
		case <-ctx.Done():
		}
	}
	return nil, ctx.Err()
}

// tryBegin returns the step to wait for, or the new step.
func (r *Reader) tryBegin(path string, file fs.FileInfo) (before, now *step, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.steps {
		switch {
		case s.path != path || !sameFile(s.file, file):
		case time.Since(s.since) >= r.timeout():
			return nil, nil, &HungError{Path: path, Since: s.since}
		default:
			return s, nil, nil
		}
	}
	if len(r.steps) >= maxHung {
		return nil, nil, errors.New(path + ": not read, since the reads of many other files hang")
	}
	now = &step{path: path, file: file, since: time.Now(), done: make(chan struct{})}
	r.steps = append(r.steps, now)
	return nil, now, nil
}

// sameFile reports whether two steps work on the same: both look the path up, or both use the same file.
func sameFile(a, b fs.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b)
}

func (r *Reader) end(s *step) {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(s.done)
	r.steps = slices.DeleteFunc(r.steps, func(other *step) bool { return other == s })
}

const (
	// maxLinks is how many symbolic links one path may have, as in Linux.
	maxLinks = 40
	// maxSmall is the size of the largest file that ReadFile reads, in bytes.
	maxSmall = 16 << 20
)

// ReadFile is os.ReadFile for a file system that may hang. The file must be a regular one of at most 16 MiB: it is for
// certificates, keys and passwords. It returns a HungError if a step takes longer than Timeout, and ctx's error if ctx
// ends.
func ReadFile(ctx context.Context, path string) ([]byte, error) {
	realPath, info, _, err := Default.Resolve(ctx, path)
	if err != nil {
		return nil, err
	}
	return Default.ReadRegular(ctx, realPath, path, info, maxSmall)
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

// Resolve returns the path without symbolic links, the file there, and each symbolic link that it has followed, also
// with an error; the last is then the path that does not exist. Errors name the path as it was given.
func (r *Reader) Resolve(
	ctx context.Context, path string,
) (realPath string, info fs.FileInfo, links []string, err error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", nil, nil, err
	}
	got, err := Step(ctx, r, abs, nil, func() (got resolver, _ error) {
		got.path, got.info, got.err = got.follow(abs)
		return got, nil
	})
	return got.path, got.info, got.links, named(cmp.Or(err, got.err), path)
}

// resolver is the result of following a path.
type resolver struct {
	links []string // the symbolic links in it, and the first path that does not exist
	path  string
	info  fs.FileInfo
	err   error
}

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

// ReadDir returns the entries of a directory, in the order of their names, as os.Lstat has them. Its path is one that
// Resolve returned. Errors name it as name.
func (r *Reader) ReadDir(ctx context.Context, realPath, name string) ([]fs.FileInfo, error) {
	entries, err := Step(ctx, r, realPath, nil, func() (all []fs.FileInfo, _ error) {
		entries, err := os.ReadDir(realPath)
		for _, e := range entries {
			if info, err := e.Info(); err == nil { // else it has just been removed
				all = append(all, info)
			}
		}
		return all, err
	})
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
		return nil, tooLarge(name, limit)
	}
	data, err := Step(ctx, r, realPath, info, func() ([]byte, error) {
		f, err := os.Open(realPath) //nolint:gosec // reading the files that the operator names is what this is for
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
		return nil, tooLarge(name, limit)
	default:
		return data, nil
	}
}

func tooLarge(name string, limit int64) error {
	return fmt.Errorf("%s: larger than %d MiB, the most that is read of one file", name, limit>>20)
}

// named returns an error about a path without links as one about the name that the user gave.
func named(err error, name string) error {
	var of *fs.PathError
	var hung *HungError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &of):
		return &fs.PathError{Op: strings.TrimPrefix(of.Op, "l"), Path: name, Err: of.Err} // stat, not lstat
	case errors.As(err, &hung):
		if abs, absErr := filepath.Abs(name); absErr == nil && abs != hung.Path {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return err
}
