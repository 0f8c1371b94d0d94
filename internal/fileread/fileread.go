// Package fileread reads files on a file system that may hang, for example because an NFS server is unreachable. On
// such a file system a read, or even a stat, may never return, and cannot be cancelled.
//
// [ReadFile] reads one small file:
//
//	key, err := fileread.ReadFile(ctx, "/run/secrets/key")
//
// [Do] runs any other reading, such as a walk through directories, in its own goroutine. It returns an error if a step
// of the reading takes longer than Timeout, or if its context ends. The goroutine then ends when the step returns.
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

// Timeout is the maximum time of one step. An NFS server usually restarts in less.
const Timeout = 10 * time.Second

// Bounds of hanging readings.
const (
	maxHung    = 100 // maximum number of concurrently hanging readings
	retryAfter = 3   // number of Timeouts after which a hanging reading is tried again
)

// ErrHung is wrapped by the error about a step that exceeds Reader.Timeout.
var ErrHung = errors.New("the file system hangs")

// Reader bounds the number of hanging readings. The zero value is ready to use. It is safe for concurrent use. Use
// Default unless you need another Timeout.
type Reader struct {
	// Timeout is the maximum time of one step; 0 means the constant Timeout.
	Timeout time.Duration

	mu       sync.Mutex
	readings []*reading // readings in progress, in the order of their start
}

// Default is the process's Reader.
var Default = &Reader{}

// reading is a reading in progress.
type reading struct {
	name  string
	begun time.Time
	done  chan struct{}

	path  string    // path of the current step
	since time.Time // start of the current step
}

// left returns the remaining time of the current step.
func (r *Reader) left(of *reading) time.Duration {
	return cmp.Or(r.Timeout, Timeout) - time.Since(of.since)
}

// Hung returns the number of readings whose current step has exceeded Timeout.
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

// Do runs f in its own goroutine and returns f's results. Before each step that may hang, f must call at with the
// step's path. Only one reading of a name runs at a time; others wait for it. Do returns an ErrHung if a step hangs, or
// at once if a reading of that name hangs already. It starts another reading of that name every half minute, because
// the hanging file may have been replaced. It returns ctx's error if ctx ends. After an error, f may still run until
// its step returns, so it must not write to variables that the caller reads, and should check ctx between steps. A
// panic in f becomes an error.
func Do[T any](
	ctx context.Context, r *Reader, name string, f func(at func(path string)) (T, error),
) (none T, err error) {
	now, err := r.begin(ctx, name)
	if err != nil {
		return none, err
	}
	var value T // not read before the end
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

// begin registers a reading of the name. It waits for another reading of that name, unless that has hung for a while.
func (r *Reader) begin(ctx context.Context, name string) (*reading, error) {
	for ctx.Err() == nil {
		r.mu.Lock()
		var before *reading // the latest one
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

// wait waits until the reading has ended. It returns an error if a step hangs or ctx ends.
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
			return fmt.Errorf("%s: reading the file has not returned for %s: %w; Weir reads it again when the read "+
				"returns, and retries every half minute", path, cmp.Or(r.Timeout, Timeout), ErrHung)
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

// maxSmall is the maximum size of a file for ReadFile, in bytes.
const maxSmall = 16 << 20

// ReadFile is os.ReadFile for a file system that may hang. The file must be regular and at most 16 MiB large. ReadFile
// returns an ErrHung if a step exceeds Timeout, and ctx's error if ctx ends.
func ReadFile(ctx context.Context, path string) ([]byte, error) {
	return Do(ctx, Default, path, func(func(string)) ([]byte, error) {
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		return Regular(path, path, info, maxSmall)
	})
}

// Regular reads a regular file of at most limit bytes. info is the result of a stat of path. Errors contain name
// instead of path. Regular may hang.
func Regular(path, name string, info fs.FileInfo, limit int64) ([]byte, error) {
	tooLarge := fmt.Errorf("%s: larger than %d MiB, the maximum for one file", name, limit>>20)
	switch {
	case !info.Mode().IsRegular(): // before opening, because opening a pipe blocks
		return nil, fmt.Errorf("%s: not a regular file", name)
	case info.Size() > limit:
		return nil, tooLarge
	}
	f, err := os.Open(path) //nolint:gosec // the operator has given the path
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

// CertPool returns the PEM certificates of a file, read with ReadFile. It returns an error if there are none.
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

// ClientTLS returns a client configuration for TLS 1.2 or newer. ca is a file with the authorities of the server's
// certificate, or "" for the system's; cert and key are the client's own, or "". The files are read with ReadFile.
// Errors begin with prefix and ca, or cert and key.
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
