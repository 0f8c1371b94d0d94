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
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"
)

// Timeout is how long one step may take. An NFS server usually restarts in less.
const Timeout = 10 * time.Second

// maxHung is the most steps that may hang at once. Each file has at most one, but a directory may get ever more files.
const maxHung = 100

// soon is how long Step waits for its function after the context has ended.
const soon = 100 * time.Millisecond

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
	}
	select { // if f does not hang, it has ended when Step returns
	case <-done:
	case <-time.After(soon):
	}
	return none, ctx.Err()
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
