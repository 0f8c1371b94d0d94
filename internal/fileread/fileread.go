// Package fileread reads files on a file system that may hang, because an NFS server is away or a disk is lost. On
// such a file system a read, or even a stat, may never return, and nothing can end it.
//
// [ReadFile] reads one small file:
//
//	key, err := fileread.ReadFile(ctx, "/run/secrets/key")
//
// [Do] runs any other reading, such as a walk through directories, in a goroutine of its own. It gives up when one step
// of the reading takes longer than Timeout, or when its context ends, and leaves the goroutine behind, which ends when
// the step returns.
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
	"slices"
	"sync"
	"time"
)

// Timeout is how long one step may take. An NFS server usually restarts in less.
const Timeout = 10 * time.Second

// Bounds of what is left behind.
const (
	maxHung    = 100 // maximum number of readings that may hang at once
	retryAfter = 3   // times Timeout: how long after a reading that hangs the same is tried again
)

// ErrHung is wrapped by the error about a step that takes longer than Reader.Timeout.
var ErrHung = errors.New("the file system hangs")

// Reader bounds how many readings hang. The zero value is ready to use. It is safe for concurrent use. Use Default,
// unless you need another Timeout.
type Reader struct {
	// Timeout is how long one step may take; 0 means the constant Timeout.
	Timeout time.Duration

	mu       sync.Mutex
	readings []*reading // under way, in the order of their beginnings
}

// Default is the process's Reader.
var Default = &Reader{}

// reading is one that is under way.
type reading struct {
	name  string
	begun time.Time
	done  chan struct{}

	path  string    // of the step under way
	since time.Time // when that began
}

// left returns how long the step under way may still take.
func (r *Reader) left(of *reading) time.Duration {
	return cmp.Or(r.Timeout, Timeout) - time.Since(of.since)
}

// Hung returns how many readings have a step that has taken longer than Timeout and has not returned.
func (r *Reader) Hung() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, of := range r.readings {
		if r.left(of) <= 0 {
			n++
		}
	}
	return n
}

// Do runs f in a goroutine of its own, and returns f's results. f must call at before each step that may hang, with the
// path that the step is about. There is one reading of a name at a time: another one waits for it. Do returns an
// ErrHung if a step hangs, or at once if a reading of that name hangs already, but begins another one each half
// minute, in case another file has taken the place of the one that hangs. It returns ctx's error if ctx ends. Then f
// goes on until its step returns, so it must not write to anything that the caller reads after an error, and should
// look at ctx between steps. A panic in f becomes an error.
func Do[T any](
	ctx context.Context, r *Reader, name string, f func(at func(path string)) (T, error),
) (none T, err error) {
	now, err := r.begin(ctx, name)
	if err != nil {
		return none, err
	}
	var value T // which nobody reads before the end
	var failed error
	go func() {
		defer func() {
			if p := recover(); p != nil {
				failed = fmt.Errorf("reading panicked: %v", p)
			}
			r.end(now)
		}()
		value, failed = f(func(path string) { r.step(now, path) })
	}()
	if err := r.wait(ctx, now); err != nil {
		return none, err
	}
	return value, failed
}

// begin registers a reading of the name, once no other one of that name is under way, or a while after one that hangs.
func (r *Reader) begin(ctx context.Context, name string) (*reading, error) {
	for ctx.Err() == nil {
		r.mu.Lock()
		var before *reading // the newest one
		for _, of := range r.readings {
			if of.name == name {
				before = of
			}
		}
		if before != nil && r.left(before) <= 0 && time.Since(before.begun) >= retryAfter*cmp.Or(r.Timeout, Timeout) &&
			len(r.readings) < maxHung {
			before = nil
		}
		now := &reading{name: name, begun: time.Now(), path: name, since: time.Now(), done: make(chan struct{})}
		if before == nil {
			r.readings = append(r.readings, now)
		}
		r.mu.Unlock()
		if before == nil {
			return now, nil
		}
		if err := r.wait(ctx, before); err != nil {
			return nil, err
		}
	}
	return nil, ctx.Err()
}

// wait returns when the reading has ended. It is an error if a step hangs, or if ctx ends before.
func (r *Reader) wait(ctx context.Context, of *reading) error {
	for {
		r.mu.Lock()
		left, path := r.left(of), of.path
		r.mu.Unlock()
		select {
		case <-of.done:
			return nil
		default:
		}
		if left <= 0 {
			return fmt.Errorf("%s: reading it has not returned for %s: %w; it is read again when that returns, and tried "+
				"again each half minute", path, cmp.Or(r.Timeout, Timeout), ErrHung)
		}
		select {
		case <-of.done:
		case <-time.After(left):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (r *Reader) step(now *reading, path string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now.path, now.since = path, time.Now()
}

func (r *Reader) end(now *reading) {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(now.done)
	r.readings = slices.DeleteFunc(r.readings, func(of *reading) bool { return of == now })
}

// maxSmall is the size of the largest file that ReadFile reads, in bytes.
const maxSmall = 16 << 20

// ReadFile is os.ReadFile for a file system that may hang. The file must be a regular one of at most 16 MiB: it is for
// certificates, keys and passwords. It returns an ErrHung if a step takes longer than Timeout, and ctx's error if ctx
// ends.
func ReadFile(ctx context.Context, path string) ([]byte, error) {
	return Do(ctx, Default, path, func(func(string)) ([]byte, error) {
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		return Regular(path, path, info, maxSmall)
	})
}

// Regular reads a regular file of at most limit bytes, at a path where info was found. Errors name it as name. It may
// hang.
func Regular(path, name string, info fs.FileInfo, limit int64) ([]byte, error) {
	tooLarge := fmt.Errorf("%s: larger than %d MiB, the most that is read of one file", name, limit>>20)
	switch {
	case !info.Mode().IsRegular(): // before it is opened: opening a pipe blocks
		return nil, fmt.Errorf("%s: not a regular file", name)
	case info.Size() > limit:
		return nil, tooLarge
	}
	f, err := os.Open(path) //nolint:gosec // reading the files that the operator names is what this is for
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, errors.Unwrap(err))
	}
	defer f.Close() //nolint:errcheck // nothing was written
	// The buffer grows if it has less than MinRead free.
	all := bytes.NewBuffer(make([]byte, 0, info.Size()+bytes.MinRead))
	switch _, err := all.ReadFrom(io.LimitReader(f, limit+1)); {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", name, errors.Unwrap(err))
	case int64(all.Len()) > limit:
		return nil, tooLarge
	default:
		return all.Bytes(), nil
	}
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
