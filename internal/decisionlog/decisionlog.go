// Package decisionlog writes what was decided, one line of JSON a request: of all requests, or of a sample of them.
//
// A request never waits for it. Whether a request is written is decided first and costs nanoseconds; the line of one that is
// goes into a bounded buffer, which one goroutine writes. What does not fit is dropped and counted, and a line says so.
package decisionlog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-ratelimit/weir/internal/rls"
)

// Bounds of the buffer, in bytes.
const (
	maxBuffer = 4 << 20
	maxLine   = 64 << 10 // a request with more to say is dropped
)

const (
	noteEvery = 10 * time.Second // a line says how many were dropped, at most so often
	lastWrite = time.Second      // at the end, for what is still in the buffer
)

// Options are what is written, and where.
type Options struct {
	// To is "stdout", "stderr" or the path of a file, which is appended to, and opened anew when it was moved.
	To string
	// Sample is the share of requests that is written, 0 to 1. SampleDenied is that of requests in which a limit did not
	// fit, in whatever mode.
	Sample, SampleDenied float64
	// Rate is the most lines a second.
	Rate int
	// Values says how values of entries are written.
	Values Values
	// Key is the secret of hashes. Nil is a random one.
	Key []byte
	// Log receives a line when the log cannot be written, and when it can again.
	Log *slog.Logger
}

// Reason is why a line was dropped.
type Reason uint8

// The reasons.
const (
	ByRate     Reason = iota // more than Options.Rate
	FullBuffer               // written more slowly than decided, or a line of more than 64 KiB
	NotWritten               // the file or stream took no more
	reasons
)

// String is the reason as a metric's label.
func (r Reason) String() string { return [...]string{"rate", "buffer", "write_error"}[r] }

// Stats counts lines since the start.
type Stats struct {
	Written uint64
	Dropped [reasons]uint64 // by Reason
}

// Log is a rls.Watcher. Its methods are safe for concurrent use.
type Log struct {
	o       Options
	out     output
	weights [2]string // of allowed and of refused requests
	hash    *hasher
	rate    rate
	lines   sync.Pool // of *[]byte

	mu     sync.Mutex
	buffer []byte
	count  uint64 // lines in buffer

	wake    chan struct{}
	written atomic.Uint64
	dropped [reasons]atomic.Uint64
	told    [reasons]uint64 // dropped, as the last line about it said
}

var _ rls.Watcher = (*Log)(nil)

// New opens the log. Run writes it, and closes it.
func New(o Options) (*Log, error) {
	out, err := open(o.To)
	if err != nil {
		return nil, fmt.Errorf("--decision-log: %w", err)
	}
	l := &Log{
		o: o, out: out, hash: newHasher(o.Key), rate: newRate(o.Rate), wake: make(chan struct{}, 1),
		lines: sync.Pool{New: func() any { return new([]byte) }},
	}
	for i, share := range []float64{o.Sample, o.SampleDenied} {
		l.weights[i] = "1"
		if share > 0 {
			l.weights[i] = strconv.FormatFloat(1/share, 'g', 6, 64)
		}
	}
	return l, nil
}

// Watch implements rls.Watcher.
func (l *Log) Watch(_ context.Context, v rls.View) {
	share, weight := l.o.Sample, l.weights[0]
	if refused(v) {
		share, weight = l.o.SampleDenied, l.weights[1]
	}
	if share < 1 && rand.Float64() >= share { //nolint:gosec // a sample, no secret
		return
	}
	now := time.Now()
	if !l.rate.allow(now) {
		l.dropped[ByRate].Add(1)
		return
	}
	line, ok := l.lines.Get().(*[]byte)
	if !ok {
		return
	}
	*line = l.appendLine((*line)[:0], now, weight, v)
	if l.put(*line) {
		select {
		case l.wake <- struct{}{}:
		default:
		}
	} else {
		l.dropped[FullBuffer].Add(1)
	}
	if cap(*line) <= maxLine {
		l.lines.Put(line)
	}
}

// refused says whether a limit did not fit.
func refused(v rls.View) bool {
	if v.Denied() {
		return true
	}
	for i := range v.Hits() {
		if _, _, d, _ := v.Hit(i); !d.Allowed {
			return true
		}
	}
	return false
}

func (l *Log) put(line []byte) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(line) > maxLine || len(l.buffer)+len(line) > maxBuffer {
		return false
	}
	l.buffer = append(l.buffer, line...)
	l.count++
	return true
}

// Run writes until ctx is done, and then what is left, for a second at most.
func (l *Log) Run(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.write(ctx)
	}()
	<-ctx.Done()
	select {
	case <-done:
	case <-time.After(lastWrite): // whoever reads the stream does not: the goroutine ends with the process
	}
}

func (l *Log) write(ctx context.Context) {
	ticker := time.NewTicker(noteEvery)
	defer ticker.Stop()
	var spare []byte
	for {
		select {
		case <-l.wake:
			spare = l.flush(ctx, spare)
		case <-ticker.C:
			l.note(ctx)
		case <-ctx.Done():
			l.flush(ctx, spare)
			l.note(ctx)
			l.out.close()
			return
		}
	}
}

// flush writes the buffer, puts an empty one in its place, and returns it to be used again.
func (l *Log) flush(ctx context.Context, spare []byte) []byte {
	l.mu.Lock()
	lines, count := l.buffer, l.count
	l.buffer, l.count = spare[:0], 0
	l.mu.Unlock()
	if count == 0 {
		return lines
	}
	if l.print(ctx, lines) {
		l.written.Add(count)
	} else {
		l.dropped[NotWritten].Add(count)
	}
	return lines
}

// print writes and says in the process's log when that begins to fail, and when it goes again.
func (l *Log) print(ctx context.Context, lines []byte) bool {
	was := l.out.failing
	err := l.out.write(lines)
	switch {
	case err != nil && !was:
		l.o.Log.LogAttrs(ctx, slog.LevelError, "decision log cannot be written, its lines are dropped",
			slog.String("to", l.o.To), slog.String("error", err.Error()))
	case err == nil && was:
		l.o.Log.LogAttrs(ctx, slog.LevelInfo, "decision log is written again", slog.String("to", l.o.To))
	}
	return err == nil
}

// note writes a line about what was dropped since the last one.
func (l *Log) note(ctx context.Context) {
	var now [reasons]uint64
	for r := range now {
		now[r] = l.dropped[r].Load()
	}
	if now == l.told {
		return
	}
	line := appendDropped(nil, time.Now(), now, l.told)
	if l.print(ctx, line) {
		l.told = now
	}
}

// Stats is how many lines were written and dropped.
func (l *Log) Stats() Stats {
	s := Stats{Written: l.written.Load()}
	for r := range s.Dropped {
		s.Dropped[r] = l.dropped[r].Load()
	}
	return s
}

// Reasons are all reasons, in order.
func Reasons() []Reason { return []Reason{ByRate, FullBuffer, NotWritten} }

// Values is how values are written.
type Values string

// The values of Values.
const (
	Plain  Values = "plain"
	Hashed Values = "hash"
	None   Values = "none"
)

// ParseValues reads the name. The error says which there are.
func ParseValues(name string) (Values, error) {
	switch v := Values(name); v {
	case Plain, Hashed, None:
		return v, nil
	default:
		return "", errors.New("must be plain, hash or none, got " + strconv.Quote(name))
	}
}

// rate admits so many a second, and as many at once.
type rate struct {
	mu     sync.Mutex
	each   time.Duration // what one costs
	full   time.Duration // a second
	filled time.Time     // the bucket is full so long after the time of a decision that it has its hits
}

func newRate(perSecond int) rate {
	return rate{each: time.Second / time.Duration(perSecond), full: time.Second}
}

func (r *rate) allow(now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := r.filled
	if next.Before(now) {
		next = now
	}
	if next = next.Add(r.each); next.Sub(now) > r.full {
		return false
	}
	r.filled = next
	return true
}
