package logging

import (
	"bytes"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-ratelimit/weir/internal/metrics/metric"
	"github.com/weir-ratelimit/weir/internal/panics"
)

// Bounds of a Queue.
const (
	// NoteEvery is how often, at most, the function that notes losses is called.
	NoteEvery = 10 * time.Second

	maxBuffer = 1 << 20  // bytes that wait to be written
	maxLine   = 64 << 10 // bytes; a longer line ends with cut
	cut       = "... (cut)\n"
)

// QueueStats counts lines since the start.
type QueueStats struct {
	Written    uint64
	FullBuffer uint64 // dropped: lines came faster than they were written, or one was longer than 64 KiB
	NotWritten uint64 // dropped: the write failed
}

// Queue writes lines to a file or a stream without ever making the writer of a line wait: a line goes into a bounded
// buffer, which one goroutine writes out, and a line that does not fit is dropped and counted. So a pipe that nobody
// reads, a full disk and a file system that hangs cost lines, and nothing else. Its methods are safe for concurrent
// use. Close ends it.
type Queue struct {
	maxBuffer, maxLine int
	write              func(lines []byte) error
	note               func(now QueueStats)

	mu     sync.Mutex
	buffer []byte
	count  uint64 // lines in buffer
	closed bool

	wake, closing, done chan struct{}
	end                 sync.Once

	written, full, notWritten atomic.Uint64
}

// NewQueue starts a queue that writes whole lines by write, which may block; if it fails, they are counted as lost, and
// the queue goes on. note is called every NoteEvery and at the end, by the goroutine that calls write: it may write a
// line that says how many lines were dropped.
func NewQueue(write func(lines []byte) error, note func(now QueueStats)) *Queue {
	return newQueue(maxBuffer, maxLine, write, note)
}

func newQueue(maxBuffer, maxLine int, write func([]byte) error, note func(QueueStats)) *Queue {
	q := &Queue{
		maxBuffer: maxBuffer, maxLine: maxLine, write: write, note: note,
		wake: make(chan struct{}, 1), closing: make(chan struct{}), done: make(chan struct{}),
	}
	go func() {
		defer close(q.done)
		panics.Restart(q.closing, "writing of a log", q.run)
	}()
	return q
}

// Put queues a copy of a line, which ends with a newline. It returns false if the line was dropped.
func (q *Queue) Put(line []byte) bool {
	if !q.put(line) {
		q.full.Add(1)
		return false
	}
	select {
	case q.wake <- struct{}{}:
	default:
	}
	return true
}

func (q *Queue) put(line []byte) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || len(line) > q.maxLine || len(q.buffer)+len(line) > q.maxBuffer {
		return false
	}
	q.buffer = append(q.buffer, line...)
	q.count++
	return true
}

// Write implements io.Writer: it queues each line, cut to 64 KiB. It never fails or waits; Stats counts dropped lines.
func (q *Queue) Write(text []byte) (int, error) {
	for line := range bytes.Lines(text) {
		if len(line) > q.maxLine {
			line = append(bytes.Clone(line[:max(0, q.maxLine-len(cut))]), cut...)
		}
		q.Put(line)
	}
	return len(text), nil
}

// Stats returns how many lines were written and dropped.
func (q *Queue) Stats() QueueStats {
	return QueueStats{Written: q.written.Load(), FullBuffer: q.full.Load(), NotWritten: q.notWritten.Load()}
}

// Close writes what waits, for at most the given time, and returns whether all of it was written in that time. If not,
// a goroutine goes on until the write returns. Lines that come later are dropped. A second Close only waits.
func (q *Queue) Close(within time.Duration) bool {
	q.end.Do(func() {
		q.mu.Lock()
		q.closed = true
		q.mu.Unlock()
		close(q.closing)
	})
	select {
	case <-q.done:
		return true
	case <-time.After(within):
	}
	select {
	case <-q.done: // at the same time
		return true
	default:
		return false
	}
}

func (q *Queue) run() {
	ticker := time.NewTicker(NoteEvery)
	defer ticker.Stop()
	var spare []byte
	for {
		select {
		case <-q.wake:
			spare = q.flush(spare)
		case <-ticker.C:
			q.note(q.Stats())
		case <-q.closing:
			q.flush(spare)
			q.note(q.Stats())
			return
		}
	}
}

// flush writes the buffer, puts an empty one in its place, and returns the written one to be used again.
func (q *Queue) flush(spare []byte) []byte {
	q.mu.Lock()
	lines, count := q.buffer, q.count
	q.buffer, q.count = spare[:0], 0
	q.mu.Unlock()
	if count == 0 {
		return lines
	}
	if q.write(lines) == nil {
		q.written.Add(count)
	} else {
		q.notWritten.Add(count)
	}
	return lines
}

// Metrics are of the lines that were dropped.
func (q *Queue) Metrics() []metric.Group {
	return []metric.Group{
		metric.Of(q.Stats,
			metric.Counters("weir_log_dropped_total", "reason",
				"Dropped log lines. reason: buffer (standard error is read too slowly), write_error (standard error is "+
					"closed, or the disk is full).",
				func(s QueueStats, w metric.Writer) {
					metric.Put(w, s.FullBuffer, "buffer")
					metric.Put(w, s.NotWritten, "write_error")
				}),
		),
	}
}
