package logging

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
)

func TestMain(m *testing.M) { casetest.FindLeaks(m) }

// sink collects what is written, after a gate if there is one.
type sink struct {
	mu   sync.Mutex
	text strings.Builder
	err  error
	gate chan struct{}
}

func (s *sink) write(lines []byte) error {
	if s.gate != nil {
		<-s.gate
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.text.Write(lines)
	}
	return s.err
}

func (s *sink) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

func TestLinesAreWrittenInOrder(t *testing.T) {
	out := &sink{}
	q := newQueue(1<<20, 1<<10, out.write, func(QueueStats) {})
	var want strings.Builder
	for i := range 1000 {
		line := strings.Repeat("x", i%50) + "\n"
		want.WriteString(line)
		if !q.Put([]byte(line)) {
			t.Fatalf("line %d was dropped", i)
		}
	}
	if !q.Close(10*time.Second) || !q.Close(0) {
		t.Error("Close says that not everything was written")
	}
	if out.String() != want.String() {
		t.Errorf("%d bytes written, want %d, in order", len(out.String()), want.Len())
	}
	if q.Put([]byte("late\n")) {
		t.Error("a line after Close was taken")
	}
	if s := q.Stats(); s != (QueueStats{Written: 1000, FullBuffer: 1}) {
		t.Errorf("%+v", s)
	}
}

// A stream that takes nothing costs lines: nobody waits, what waits is bounded, and Close has an end.
func TestStuckWriterBlocksNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &sink{gate: make(chan struct{})}
		q := newQueue(1000, 100, out.write, func(QueueStats) {})
		q.Put([]byte("first\n"))
		synctest.Wait() // the queue's goroutine is stuck with it
		begin := time.Now()
		line := []byte(strings.Repeat("x", 99) + "\n")
		for range 25 {
			if n, err := q.Write(line); n != len(line) || err != nil {
				t.Fatalf("Write returns %d, %v", n, err)
			}
		}
		if took := time.Since(begin); took != 0 {
			t.Errorf("25 lines took %s", took)
		}
		if s := q.Stats(); s.FullBuffer != 15 || len(q.buffer) != 1000 {
			t.Errorf("%+v and %d bytes wait; want 15 dropped, and 1000", s, len(q.buffer))
		}
		if q.Close(time.Second) || time.Since(begin) != time.Second {
			t.Errorf("Close came back after %s and says that everything was written", time.Since(begin))
		}
		close(out.gate)
		if !q.Close(time.Second) || q.Stats().Written != 11 {
			t.Errorf("after the reader returned: %+v, want all 11 written", q.Stats())
		}
	})
}

func TestLostLinesAreCountedAndNoted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &sink{err: errors.New("no space left on device")}
		var fails atomic.Int32
		q := newQueue(1000, 10, out.write, func(now QueueStats) {
			if now.NotWritten > 0 && out.write([]byte("lost\n")) != nil {
				fails.Add(1)
			}
		})
		q.Put([]byte("a\n"))
		<-time.After(NoteEvery)
		synctest.Wait()
		if s := q.Stats(); s.NotWritten != 1 || fails.Load() != 1 {
			t.Errorf("%+v, %d notes failed; want one line lost and one note", s, fails.Load())
		}
		out.mu.Lock()
		out.err = nil
		out.mu.Unlock()
		q.Put([]byte("b\n"))
		synctest.Wait()
		q.Close(time.Second)
		if got := out.String(); got != "b\nlost\n" {
			t.Errorf("%q", got)
		}
	})
}

// A text of several lines is several lines, and what is too long for one is cut off.
func TestWriteCutsLongLines(t *testing.T) {
	out := &sink{}
	q := newQueue(1000, 30, out.write, func(QueueStats) {})
	if _, err := q.Write([]byte("one\n" + strings.Repeat("x", 100) + "\nlast")); err != nil {
		t.Fatal(err)
	}
	q.Close(10 * time.Second)
	if got, want := out.String(), "one\n"+strings.Repeat("x", 20)+"... (cut)\nlast"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
