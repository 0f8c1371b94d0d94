// Package decisionlog writes decisions as lines of JSON, one a request: of all requests, or of a sample.
//
// A request never waits for it. Whether a request is sampled costs nanoseconds; the line of a sampled request goes into
// a bounded queue (internal/logging). A full queue drops and counts lines, and a later line tells how many.
package decisionlog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/logging"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Bounds of the buffer, in bytes.
const (
	maxBuffer = 4 << 20
	maxLine   = 64 << 10 // longer lines are dropped
)

// lastWrite is how long Close may take to write the buffer.
const lastWrite = time.Second

// Options say what to write, and where.
type Options struct {
	// To is "stdout", "stderr" or the path of a file. Lines are appended to the file; it is opened again after it was
	// moved.
	To string
	// Sample is the share of requests to write, 0 to 1. SampleDenied is the share of requests in which a limit did not
	// fit, in any mode.
	Sample, SampleDenied float64
	// Rate is the most lines a second.
	Rate int
	// Values says how to write the values of entries.
	Values Values
	// Key is the secret of hashes. Nil: a random one.
	Key []byte
	// Log receives a line when writing fails, and one when it works again.
	Log *slog.Logger
}

// Reason is why a line was dropped.
type Reason uint8

// The reasons.
const (
	ByRate     Reason = iota // there were more lines a second than Options.Rate
	FullBuffer               // lines came faster than they were written, or the line was longer than 64 KiB
	NotWritten               // the file or stream took no more
	reasons
)

// String returns the reason as a metric's label.
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
	weights [2]float64 // of requests that Options.Sample and SampleDenied sample
	hash    *hasher
	rate    *logging.Rate

	queue    *logging.Queue
	byRate   atomic.Uint64   // lines that ByRate dropped
	reported [reasons]uint64 // dropped lines that the log has reported; only the queue's goroutine uses it
}

var _ decide.Watcher = (*Log)(nil)

// New opens the log. Close ends it.
func New(o Options) (*Log, error) {
	out, err := open(o.To)
	if err != nil {
		return nil, fmt.Errorf("--decision-log: %w", err)
	}
	l := &Log{
		o: o, out: out, hash: newHasher(o.Key), rate: logging.NewRate(o.Rate, time.Second),
		weights: [2]float64{weight(o.Sample), weight(o.SampleDenied)},
	}
	l.queue = logging.NewQueue(logging.QueueOptions{
		MaxBytes: maxBuffer, MaxLine: maxLine, Write: l.print, Note: l.note, End: l.out.close,
	})
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
	if !l.rate.Allow(now) {
		l.byRate.Add(1)
		return
	}
	line := l.line(now, weight, v)
	l.queue.Put(encode(&line))
}

// encode returns a line with its newline.
func encode(line any) []byte {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	_ = e.Encode(line) // nothing in a line fails
	return text.Bytes()
}

// weight is how many requests a line of a sample stands for, in six digits.
func weight(share float64) float64 {
	if share == 0 {
		return 1
	}
	rounded, _ := strconv.ParseFloat(strconv.FormatFloat(1/share, 'g', 6, 64), 64)
	return rounded
}

// refused says whether a limit did not fit.
func refused(v *decide.Verdict) bool {
	return v.Denied || slices.ContainsFunc(v.Decisions, func(d limiter.Decision) bool { return !d.Allowed })
}

// Close writes the buffer, for at most a second: a stream that nobody reads must not keep the process from ending.
// Later lines are dropped. It may be called more than once.
func (l *Log) Close() { l.queue.Close(lastWrite) }

// print writes lines. The process's log has a line when writing begins to fail, and when it works again.
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

// note writes a line about the lines that were dropped since the last such line.
func (l *Log) note(q logging.QueueStats, write func([]byte) error) {
	now := l.dropped(q)
	if now == l.reported {
		return
	}
	line := struct {
		Time    Time              `json:"time"`
		Dropped map[string]uint64 `json:"dropped"`
	}{Time{time.Now()}, map[string]uint64{}}
	for i, r := range Reasons() {
		line.Dropped[r.String()] = now[i] - l.reported[i]
	}
	if write(encode(line)) == nil {
		l.reported = now
	}
}

func (l *Log) dropped(q logging.QueueStats) [reasons]uint64 {
	return [reasons]uint64{ByRate: l.byRate.Load(), FullBuffer: q.FullBuffer, NotWritten: q.NotWritten}
}

// Stats returns how many lines were written and dropped.
func (l *Log) Stats() Stats {
	q := l.queue.Stats()
	return Stats{Written: q.Written, Dropped: l.dropped(q)}
}

// Reasons returns all reasons, in order.
func Reasons() []Reason { return []Reason{ByRate, FullBuffer, NotWritten} }

// Values says how to write values.
type Values string

// The values of Values.
const (
	Plain  Values = "plain"
	Hashed Values = "hash"
	None   Values = "none"
)

// ParseValues parses the name. Its error lists the names.
func ParseValues(name string) (Values, error) {
	switch v := Values(name); v {
	case Plain, Hashed, None:
		return v, nil
	default:
		return "", errors.New("must be plain, hash or none, got " + strconv.Quote(name))
	}
}

// output is the file or stream to write to. It is for one goroutine.
type output struct {
	path    string // empty: a standard stream
	file    *os.File
	info    os.FileInfo // of file
	failing bool
	torn    bool // the last line was written only in part
}

func open(to string) (output, error) {
	switch to {
	case "stdout":
		return output{file: os.Stdout}, nil
	case "stderr":
		return output{file: os.Stderr}, nil
	}
	o := output{path: to}
	return o, o.open()
}

func (o *output) open() error {
	f, err := os.OpenFile(o.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640) //nolint:gosec // the group collects logs
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil && info.IsDir() {
		err = fmt.Errorf("%s is a directory; write the path of a file, stdout or stderr", o.path)
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	o.file, o.info = f, info
	return nil
}

// follow opens the file again if another file, or none, has its name, as after logrotate.
func (o *output) follow() error {
	if o.path == "" {
		return nil
	}
	if now, err := os.Stat(o.path); o.file != nil && err == nil && os.SameFile(now, o.info) {
		return nil
	}
	if o.file != nil {
		o.file.Close() //nolint:errcheck,gosec // every write has reported its error
		o.file = nil
	}
	return o.open()
}

// write writes whole lines, and begins a new one if the last was cut off by a full disk.
func (o *output) write(lines []byte) error {
	err := o.follow()
	if err == nil && o.torn {
		_, err = o.file.WriteString("\n")
	}
	if err == nil {
		var n int
		n, err = o.file.Write(lines)
		o.torn = n > 0 && lines[n-1] != '\n'
	}
	o.failing = err != nil
	return err
}

func (o *output) close() {
	if o.path != "" && o.file != nil {
		o.file.Close() //nolint:errcheck,gosec // every write has reported its error
	}
}
