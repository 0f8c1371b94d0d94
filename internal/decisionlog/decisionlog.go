// Package decisionlog writes what was decided, one line of JSON a request: of all requests, or of a sample of them.
//
// A request never waits for it. Whether a request is written is decided first and costs nanoseconds; the line of one that is
// goes into a bounded queue (internal/logging). What does not fit is dropped and counted, and a line says so.
package decisionlog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/logging"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Bounds of the buffer, in bytes.
const (
	maxBuffer = 4 << 20
	maxLine   = 64 << 10 // a request with more to say is dropped
)

// lastWrite is how long Close writes what is still in the buffer.
const lastWrite = time.Second

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

// Log is a decide.Watcher. Its methods are safe for concurrent use.
type Log struct {
	o       Options
	out     output
	weights [2]string // of allowed and of refused requests
	hash    *hasher
	rate    rate
	lines   sync.Pool // of *[]byte

	queue  *logging.Queue
	byRate atomic.Uint64   // dropped by the rate
	told   [reasons]uint64 // dropped, as the last line about it said; only the queue's goroutine uses it
}

var _ decide.Watcher = (*Log)(nil)

// New opens the log. Close ends it.
func New(o Options) (*Log, error) {
	out, err := open(o.To)
	if err != nil {
		return nil, fmt.Errorf("--decision-log: %w", err)
	}
	l := &Log{
		o: o, out: out, hash: newHasher(o.Key), rate: newRate(o.Rate),
		lines: sync.Pool{New: func() any { return new([]byte) }},
	}
	for i, share := range []float64{o.Sample, o.SampleDenied} {
		l.weights[i] = "1"
		if share > 0 {
			l.weights[i] = strconv.FormatFloat(1/share, 'g', 6, 64)
		}
	}
	l.queue = logging.NewQueue(logging.QueueOptions{MaxBytes: maxBuffer, MaxLine: maxLine, Write: l.print, Note: l.note, End: l.out.close})
	return l, nil
}

// Watch implements decide.Watcher.
func (l *Log) Watch(_ context.Context, v *decide.Verdict) {
	share, weight := l.o.Sample, l.weights[0]
	if refused(v) {
		share, weight = l.o.SampleDenied, l.weights[1]
	}
	if share < 1 && rand.Float64() >= share { //nolint:gosec // a sample, no secret
		return
	}
	now := time.Now()
	if !l.rate.allow(now) {
		l.byRate.Add(1)
		return
	}
	line, ok := l.lines.Get().(*[]byte)
	if !ok {
		return
	}
	*line = l.appendLine((*line)[:0], now, weight, v)
	l.queue.Put(*line)
	if cap(*line) <= maxLine {
		l.lines.Put(line)
	}
}

// refused says whether a limit did not fit.
func refused(v *decide.Verdict) bool {
	return v.Denied || slices.ContainsFunc(v.Decisions, func(d limiter.Decision) bool { return !d.Allowed })
}

// Close writes what is left, for a second at most: a stream that nobody reads does not stop the process from ending. Later
// lines are dropped. It may be called more than once.
func (l *Log) Close() { l.queue.Close(lastWrite) }

// print writes and says in the process's log when that begins to fail, and when it goes again.
func (l *Log) print(lines []byte) error {
	was := l.out.failing
	err := l.out.write(lines)
	switch {
	case err != nil && !was:
		l.o.Log.LogAttrs(context.Background(), slog.LevelError, "decision log cannot be written, its lines are dropped",
			slog.String("to", l.o.To), slog.String("error", err.Error()))
	case err == nil && was:
		l.o.Log.LogAttrs(context.Background(), slog.LevelInfo, "decision log is written again", slog.String("to", l.o.To))
	}
	return err
}

// note writes a line about what was dropped since the last one.
func (l *Log) note(q logging.QueueStats, write func([]byte) error) {
	now := l.dropped(q)
	if now != l.told && write(appendDropped(nil, time.Now(), now, l.told)) == nil {
		l.told = now
	}
}

func (l *Log) dropped(q logging.QueueStats) [reasons]uint64 {
	return [reasons]uint64{ByRate: l.byRate.Load(), FullBuffer: q.FullBuffer, NotWritten: q.NotWritten}
}

// Stats is how many lines were written and dropped.
func (l *Log) Stats() Stats {
	q := l.queue.Stats()
	return Stats{Written: q.Written, Dropped: l.dropped(q)}
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
