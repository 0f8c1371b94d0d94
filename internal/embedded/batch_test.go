package embedded

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// batchedWaiter is a Waiter that keeps a copy of the answer, and the context of its request.
type batchedWaiter struct {
	context.Context

	answer Answer
	gone   atomic.Bool
	ended  chan struct{}
}

func (w *batchedWaiter) Answered(c *Call) bool {
	w.answer = c.Answer
	w.answer.Headers = append([]Header(nil), c.Answer.Headers...)
	return !w.gone.Load()
}
func (w *batchedWaiter) Ended() { close(w.ended) }
func (w *batchedWaiter) Err() error {
	if w.gone.Load() {
		return context.Canceled
	}
	return nil
}

// begin begins a request that is decided in a batch.
func begin(t *testing.T, f *Filter, key string) *batchedWaiter {
	t.Helper()
	c := f.Call(nil)
	c.AddHeader("x-key", []byte(key))
	if c.Decide() {
		t.Fatalf("it is not decided in a batch: %+v", c.Answer)
	}
	w := &batchedWaiter{Context: t.Context(), ended: make(chan struct{})}
	c.Later(w, w)
	return w
}

// Requests of a batch get the answers that others get, and exactly the limit passes.
func TestBatchesAnswer(t *testing.T) {
	server := redistest.Start(t)
	m := newModule(t)
	f := newTestFilter(t, m, configOf(t, []string{
		rulesFlag(t), "--store=" + server.URL(), "--store-timeout=5s", "--on-store-failure=deny", "--no-cached-denials",
	}, `"enable_x_ratelimit_headers": "DRAFT_VERSION_03"`))
	var passed atomic.Int64
	var wait sync.WaitGroup
	for g := range 4 {
		wait.Go(func() {
			var all []*batchedWaiter
			for i := range 40 {
				all = append(all, begin(t, f, fmt.Sprint("ann", i%2)))
				if i%8 == g {
					m.Send()
				}
			}
			m.Send()
			for _, w := range all {
				<-w.ended
				switch {
				case w.answer.Outcome == OK:
					passed.Add(1)
				case w.answer.Outcome != OverLimit || w.answer.Status != 429 || header(w.answer, "retry-after") == "":
					t.Errorf("answer %+v", w.answer)
				}
				if header(w.answer, "x-ratelimit-limit") == "" {
					t.Errorf("headers %+v", w.answer.Headers)
				}
			}
		})
	}
	wait.Wait()
	if passed.Load() != 4 { // 2 keys, 2 a year
		t.Errorf("%d passed, want 4", passed.Load())
	}
	server.Kill()
	w := begin(t, f, "bob")
	m.Send()
	<-w.ended
	if w.answer.Outcome != OverLimit || header(w.answer, "retry-after") != "" {
		t.Errorf("without Redis: %+v, want the failure policy's denial", w.answer)
	}
}

// A request that goes while Redis hangs ends with those that are decided together with it, also if the filter closes
// meanwhile.
func TestBatchedRequestsThatGo(t *testing.T) {
	server := redistest.Start(t)
	m := newModule(t)
	f := newTestFilter(t, m, configOf(t, []string{rulesFlag(t), "--store=" + server.URL(), "--store-timeout=1s"}))
	server.Pause()
	defer server.Resume()
	gone, stays := begin(t, f, "ann"), begin(t, f, "ann")
	m.Send()
	f.Close()
	gone.gone.Store(true)
	<-gone.ended
	if gone.answer.Outcome != Failed {
		t.Errorf("the one that has gone: %+v", gone.answer)
	}
	<-stays.ended
	if stays.answer.Outcome != OK {
		t.Errorf("the one that stays: %+v, want the failure policy to let it pass", stays.answer)
	}
}

// A request that has gone before Redis is asked is not charged.
func TestGoneRequestsAreNotCharged(t *testing.T) {
	m := newModule(t)
	f := newTestFilter(t, m, configOf(t, []string{
		rulesFlag(t), "--store=" + redistest.Start(t).URL(), "--store-timeout=5s", "--no-cached-denials",
	}))
	for range 2 {
		gone := begin(t, f, "ann")
		gone.gone.Store(true)
		m.Send()
		<-gone.ended
		if gone.answer.Outcome != Failed {
			t.Errorf("one that has gone: %+v", gone.answer)
		}
	}
	stays := begin(t, f, "ann") // of 2 a year
	m.Send()
	<-stays.ended
	if stays.answer.Outcome != OK {
		t.Errorf("one that stays: %+v, want the limit free of those that have gone", stays.answer)
	}
}

// brokenWaiter is a Waiter with a bug.
type brokenWaiter struct{ *batchedWaiter }

func (w brokenWaiter) Ended() {
	w.batchedWaiter.Ended()
	panic("boom")
}

// A panic at the end of a request ends no other one of its batch, and later batches are decided.
func TestEndsPanic(t *testing.T) {
	m := newModule(t)
	f := newTestFilter(t, m, configOf(t, []string{
		rulesFlag(t), "--store=" + redistest.Start(t).URL(), "--store-timeout=5s", "--no-cached-denials",
	}))
	for range 2 * maxBatches {
		c := f.Call(nil)
		c.AddHeader("x-key", []byte("ann"))
		if c.Decide() {
			t.Fatalf("it is not decided in a batch: %+v", c.Answer)
		}
		broken := &batchedWaiter{Context: t.Context(), ended: make(chan struct{})}
		c.Later(broken, brokenWaiter{broken})
		next := begin(t, f, "ann")
		m.Send()
		for _, w := range []*batchedWaiter{broken, next} {
			casetest.Receive(t, w.ended, "end of a request")
		}
	}
}
