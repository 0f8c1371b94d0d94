// Package fileread reads files that may lie on a file system which hangs: an NFS server that is away, a disk that is lost.
// There a read, and even a look at a name, may never return, and nothing can end it.
//
// So files are read by a goroutine of their own, in steps: one look-up, one list, one open, one read of 64 KiB. Whoever
// waits gives up when one step takes longer than Timeout, or when its context ends, and leaves the goroutine behind. It ends
// as soon as its step returns. While it does not, nobody begins another step on the same file: a HungError says so at once,
// so that goroutines do not pile up.
package fileread

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"
)

// Timeout is how long one step may take. An NFS server that restarts is back earlier, as a rule.
const Timeout = 10 * time.Second

// maxHung is the most steps that may hang at once. One hangs for each file; this is for a directory that gets more and more.
const maxHung = 100

// soon is how long Do waits for a function whose context has ended.
const soon = 100 * time.Millisecond

// HungError says that a step has not returned for longer than Reader.Timeout.
type HungError struct {
	Path  string
	Since time.Time // when the step began
}

// Error names the file and the time.
func (e *HungError) Error() string {
	return fmt.Sprintf("%s: reading it has not returned since %s: the file system hangs; it is read again when that returns, "+
		"or when another file takes its place", e.Path, e.Since.UTC().Format(time.RFC3339))
}

// Reader begins no second step on a file while one hangs. It is safe for concurrent use. Default is the process's.
type Reader struct {
	// Timeout is how long one step may take; 0 is the constant Timeout.
	Timeout time.Duration

	mu    sync.Mutex
	steps map[string][]*step // that are under way, by path; several only if the path has become another file
}

// Default is the Reader of the process.
var Default = &Reader{}

// step is one that is under way.
type step struct {
	path  string
	file  fs.FileInfo // what the path was when the step began; nil if that is what the step asks
	since time.Time
	done  chan struct{}
}

func (r *Reader) timeout() time.Duration {
	if r.Timeout == 0 {
		return Timeout
	}
	return r.Timeout
}

// Hung returns how many steps hang.
func (r *Reader) Hung() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, steps := range r.steps {
		for _, s := range steps {
			if time.Since(s.since) >= r.timeout() {
				n++
			}
		}
	}
	return n
}

// Session is one use of a Reader, by one goroutine.
type Session struct {
	reader *Reader
	ctx    context.Context //nolint:containedctx // of one call of Do

	mu  sync.Mutex
	now *step // nil between steps
}

// Do runs f in a goroutine of its own and returns what f does, a HungError when a step of f hangs, or ctx's error. After the
// latter two f goes on until its step returns, and ends at the next one: what f writes to must be its own. A panic in f is
// an error.
func Do[T any](ctx context.Context, r *Reader, f func(*Session) (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends f if it was left behind
	s := &Session{reader: r, ctx: ctx}
	done := make(chan result, 1)
	go func() {
		var got result
		defer func() {
			if p := recover(); p != nil {
				got.err = fmt.Errorf("reading panicked: %v", p)
			}
			done <- got
		}()
		got.value, got.err = f(s)
	}()
	timer := time.NewTimer(r.timeout())
	defer timer.Stop()
	var none T
	for {
		select {
		case got := <-done:
			return got.value, got.err
		case <-ctx.Done():
			select { // what does not hang has ended when Do returns
			case <-done:
			case <-time.After(soon):
			}
			return none, ctx.Err()
		case <-timer.C:
			left, err := s.left()
			if err != nil {
				return none, err
			}
			timer.Reset(left)
		}
	}
}

// left is how long the step under way may still take. The error is a HungError.
func (s *Session) left() (time.Duration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	limit := s.reader.timeout()
	if s.now == nil {
		return limit, nil
	}
	if left := limit - time.Since(s.now.since); left > 0 {
		return left, nil
	}
	return 0, &HungError{Path: s.now.path, Since: s.now.since}
}

// Step runs f, which does one thing to the file at the path that may hang. file is what the path is known to be, or nil if f
// looks what it is: a step that hangs on another file is not waited for, so that a file can be replaced. The error is f's, a HungError because an earlier step on the file
// hangs, or the context's.
func (s *Session) Step(path string, file fs.FileInfo, f func() error) error {
	if err := s.ctx.Err(); err != nil {
		return err
	}
	now, err := s.reader.begin(s.ctx, path, file)
	if err != nil {
		return err
	}
	defer s.reader.end(now)
	s.set(now)
	defer s.set(nil)
	return f()
}

func (s *Session) set(now *step) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = now
}

// begin waits for the step on the file that is under way, and then puts another in its place.
func (r *Reader) begin(ctx context.Context, path string, file fs.FileInfo) (*step, error) {
	for {
		before, now, err := r.tryBegin(path, file)
		if err != nil || now != nil {
			return now, err
		}
		timer := time.NewTimer(r.timeout() - time.Since(before.since))
		select {
		case <-before.done:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
}

// tryBegin returns the step that is to be waited for, or the new one.
func (r *Reader) tryBegin(path string, file fs.FileInfo) (before, now *step, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.steps[path] {
		switch {
		case !sameFile(s.file, file):
		case time.Since(s.since) >= r.timeout():
			return nil, nil, &HungError{Path: path, Since: s.since}
		default:
			return s, nil, nil
		}
	}
	if len(r.steps) >= maxHung || len(r.steps[path]) >= maxHung {
		return nil, nil, errors.New(path + ": not read, since the reads of many other files hang")
	}
	if r.steps == nil {
		r.steps = map[string][]*step{}
	}
	now = &step{path: path, file: file, since: time.Now(), done: make(chan struct{})}
	r.steps[path] = append(r.steps[path], now)
	return nil, now, nil
}

// sameFile says whether steps concern the same: both a look at the path, or both the file that was there.
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
	steps := r.steps[s.path]
	for i, other := range steps {
		if other == s {
			steps = append(steps[:i:i], steps[i+1:]...)
			break
		}
	}
	if len(steps) == 0 {
		delete(r.steps, s.path)
	} else {
		r.steps[s.path] = steps
	}
}
