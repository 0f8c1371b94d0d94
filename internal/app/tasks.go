package app

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// within runs f and returns whether it has ended in time. If not, f goes on in a goroutine of its own.
func within(limit time.Duration, f func()) bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// closeInTime closes a part, and leaves it behind if that takes longer than limit.
func closeInTime(name string, limit time.Duration, closePart func() error) error {
	closed := make(chan error, 1)
	if !within(limit, func() { closed <- closePart() }) {
		return fmt.Errorf("%s: not closed after %s", name, limit)
	}
	return <-closed
}

// tasks are goroutines with names. It is safe for concurrent use.
type tasks struct {
	all     sync.WaitGroup
	mu      sync.Mutex
	running map[string]bool
}

func (t *tasks) run(name string, f func()) {
	t.mark(name, true)
	t.all.Go(func() {
		defer t.mark(name, false)
		f()
	})
}

func (t *tasks) mark(name string, running bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running == nil {
		t.running = map[string]bool{}
	}
	if running {
		t.running[name] = true
	} else {
		delete(t.running, name)
	}
}

// wait returns when all have ended. An error names those that have not in time.
func (t *tasks) wait() error {
	if within(lastWait, t.all.Wait) {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return fmt.Errorf("not ended %s after the stop: %s", lastWait, strings.Join(slices.Sorted(maps.Keys(t.running)), ", "))
}
