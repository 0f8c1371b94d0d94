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

// HungError reports a step that takes longer than Reader.Timeout.
type HungError struct {
	Path  string
	Since time.Time // when the step began
}

// Error implements error. It names the file and when the step began.
func (e *HungError) Error() string {
	return fmt.Sprintf("%s: reading it has not returned since %s: the file system hangs; it is read again when that "+
		"returns, and tried again each half minute", e.Path, e.Since.UTC().Format(time.RFC3339))
}

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

func (r *Reader) timeout() time.Duration { return cmp.Or(r.Timeout, Timeout) }

// left returns how long the step under way may still take.
func (r *Reader) left(of *reading) time.Duration { return r.timeout() - time.Since(of.since) }

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
// path that the step is about. There is one reading of a name at a time: another one waits for it. Do returns a
// HungError if a step hangs, or at once if a reading of that name hangs already, but begins another one each half
// minute, in case another file has taken the place of the one that hangs. It returns ctx's error if ctx ends. Then f
// goes on until its step returns, so it must not write to anything that the caller reads after an error, and should
// look at ctx between steps. A panic in f becomes an error.
func Do[T any](
	ctx context.Context, r *Reader, name string, f func(at func(path string)) (T, error),
) (none T, err error) {
	type result struct {
		value T
		err   error
	}
	now, err := r.begin(ctx, name)
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
		got.value, got.err = f(func(path string) { r.step(now, path) })
	}()
	for {
		left, hung := r.state(now)
		if hung != nil {
			return none, hung
		}
		select {
		case got := <-done:
			return got.value, got.err
		case <-time.After(left):
		case <-ctx.Done():
			return none, ctx.Err()
		}
	}
}

// begin waits for the reading of the name that is under way, and then registers another.
func (r *Reader) begin(ctx context.Context, name string) (*reading, error) {
	for ctx.Err() == nil {
		before, now, err := r.tryBegin(name)
		if err != nil || now != nil {
			return now, err
		}
		left, _ := r.state(before)
		select {
		case <-before.done:
		case <-time.After(left):
		case <-ctx.Done():
		}
	}
	return nil, ctx.Err()
}

// tryBegin returns the reading to wait for, or the new one.
func (r *Reader) tryBegin(name string) (before, now *reading, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, of := range slices.Backward(r.readings) {
		if of.name != name {
			continue
		}
		if r.left(of) > 0 {
			return of, nil, nil
		}
		if time.Since(of.begun) < retryAfter*r.timeout() {
			return nil, nil, r.oldest(of)
		}
		break
	}
	if len(r.readings) >= maxHung {
		return nil, nil, errors.New(name + ": not read, since many other reads of files hang")
	}
	now = &reading{name: name, begun: time.Now(), path: name, since: time.Now(), done: make(chan struct{})}
	r.readings = append(r.readings, now)
	return nil, now, nil
}

// oldest is the error about the reading that has hung longest of those of the same name: so its text stays the same.
func (r *Reader) oldest(hung *reading) error {
	i := slices.IndexFunc(r.readings, func(of *reading) bool { return of.name == hung.name && r.left(of) <= 0 })
	return &HungError{Path: r.readings[i].path, Since: r.readings[i].since}
}

// state returns how long the reading's step may still take, or that it hangs.
func (r *Reader) state(of *reading) (left time.Duration, hung error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if left = r.left(of); left <= 0 && slices.Contains(r.readings, of) {
		return 0, r.oldest(of)
	}
	return left, nil
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
// certificates, keys and passwords. It returns a HungError if a step takes longer than Timeout, and ctx's error if ctx
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
