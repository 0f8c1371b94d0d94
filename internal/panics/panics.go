// Package panics prevents a panic in a goroutine of Weir from ending a process in which Weir is a guest, such as Envoy.
//
// By default a panic ends the process. A program with Weir as a guest calls [Handle] once, before it uses any other
// package of Weir. From then on, a panic ends only its own goroutine, if Weir started that goroutine. The handler
// receives the panic. The function then runs again after [Pause], or fails as if its server had not replied.
//
// Two kinds of panics still end the process: panics in goroutines that libraries start, and panics of the Go runtime
// that cannot be recovered, such as a concurrent write to a map.
package panics

import (
	"runtime/debug"
	"sync/atomic"
	"time"
)

// Pause is the time that [Restart] waits after a panic before it runs its function again.
const Pause = time.Second

// Handler receives a panic: the name given to Catch, the value of the panic, and the stack of the goroutine. It runs on
// that goroutine, may be called concurrently, and must not panic.
type Handler func(name string, value any, stack []byte)

var handler atomic.Pointer[Handler]

// Handle sets the handler, which receives each panic. The returned function removes h; a later panic ends the process.
func Handle(h Handler) (remove func()) {
	handler.Store(&h)
	return func() { handler.CompareAndSwap(&h, nil) }
}

// Catch runs f, and reports whether f panicked and a handler received the panic, after the deferred calls of f. name
// describes f in the log, such as "sweep of expired counters".
func Catch(name string, f func()) (panicked bool) {
	defer func() {
		h := handler.Load()
		if h == nil {
			return // without recover, a panic continues
		}
		value := recover()
		if value == nil {
			return
		}
		panicked = true
		(*h)(name, value, debug.Stack())
	}()
	f()
	return false
}

// Go runs f in a new goroutine with [Catch].
func Go(name string, f func()) { go Catch(name, f) }

// Restart runs f with [Catch] until f returns without a panic. After a panic it waits for [Pause] first. It returns
// during that wait if stop is closed; stop may be nil.
func Restart(stop <-chan struct{}, name string, f func()) {
	for Catch(name, f) {
		select {
		case <-stop:
			return
		case <-time.After(Pause):
		}
	}
}
