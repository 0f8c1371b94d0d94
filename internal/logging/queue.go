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
	// NoteEvery is the interval at which the function that reports losses is called.
	NoteEvery = 10 * time.Second

	maxBuffer = 1 << 20  // maximum number of bytes that wait to be written
	maxLine   = 64 << 10 // in bytes; a longer line is truncated and ends with cut
	cut       = "... (cut)\n"
)

// QueueStats counts lines since the start.
type QueueStats struct {
	Written    uint64
	FullBuffer uint64 // dropped: the buffer was full, or the line was too long
	NotWritten uint64 // dropped: the write failed
}

// Queue writes lines to a file or a stream without blocking the caller. A line goes into a bounded buffer, which one
// goroutine writes, and is dropped and counted if the buffer is full. So an unread pipe, a full disk or a hanging file
// system only costs lines. It is safe for concurrent use. Close ends it.
type Queue struct {
	maxBuffer, maxLine int
	write              func(lines []byte) error
	note               func(now QueueStats)

	mu     sync.Mutex
	buffer []byte
	count  uint64 // number of lines in buffer
	closed bool

	wake, closing, done chan struct{}
	end                 sync.Once

	written, full, notWritten atomic.Uint64
}

// NewQueue starts a queue that writes complete lines with write, which may block. If write fails, its lines are lost.
// The same goroutine calls note every NoteEvery and at the end; note may write a line about dropped lines.
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

// Put queues a copy of a line, which must end with a newline. It returns false if the line was dropped.
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

// Write implements io.Writer: it queues each line, truncated to 64 KiB. It never fails or blocks; it may drop lines.
func (q *Queue) Write(text []byte) (int, error) {
	for line := range bytes.Lines(text) {
		if len(line) > q.maxLine {
			line = append(bytes.Clone(line[:max(0, q.maxLine-len(cut))]), cut...)
		}
		q.Put(line)
	}
	return len(text), nil
}

// Stats returns the numbers of written and dropped lines.
func (q *Queue) Stats() QueueStats {
	return QueueStats{Written: q.written.Load(), FullBuffer: q.full.Load(), NotWritten: q.notWritten.Load()}
}

// Close writes waiting lines, for at most within, and returns whether it has written all of them. If not, a goroutine
// continues until the write returns. Later lines are dropped. A second Close only waits.
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
	case <-q.done: // both were ready
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

// flush writes the buffer and replaces it by spare. It returns the written buffer for reuse.
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

// Metrics returns the metrics of dropped lines.
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
