// Package panics keeps a panic in a goroutine of Weir from ending a process that is not Weir's own, such as Envoy.
//
// By default nothing changes: a panic ends the process. A program in which Weir is a guest calls [Handle] once, before
// it uses any other package of Weir. From then on each goroutine that Weir starts ends alone when it panics: the panic
// goes to the handler, and what ran in the goroutine starts again after [Pause], or fails as if its server had not
// answered.
//
// Two kinds of goroutines are not covered: those that libraries start themselves, and those that panic in the Go
// runtime without a way to recover, such as a concurrent write to a map.
package panics

import (
	"runtime/debug"
	"sync/atomic"
	"time"
)

// Pause is the time between a panic and the next start of what [Restart] runs.
const Pause = time.Second

// Handler takes a panic: the name of what panicked, the value, and the stack of the goroutine. It runs on that
// goroutine, possibly on several at once, and must not panic.
type Handler func(name string, value any, stack []byte)

var handler atomic.Pointer[Handler]

// Handle has panics caught from now on, and h called for each, in place of the handler before. The returned function
// removes h; without a handler a panic ends the process again.
func Handle(h Handler) (remove func()) {
	handler.Store(&h)
	return func() { handler.CompareAndSwap(&h, nil) }
}

// Catch runs f, and reports whether it panicked and a handler took the panic. Deferred calls of f have run by then.
// Name what f does for the log, such as "sweep of expired counters".
func Catch(name string, f func()) (panicked bool) {
	defer func() {
		h := handler.Load()
		if h == nil {
			return // a panic goes on
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

// Go runs f in a goroutine that ends alone if f panics.
func Go(name string, f func()) { go Catch(name, f) }

// Restart runs f until it returns. After a panic that a handler took, it runs f again, once [Pause] is over; it returns
// instead if stop is closed. A nil stop never is.
func Restart(stop <-chan struct{}, name string, f func()) {
	for Catch(name, f) {
		select {
		case <-stop:
			return
		case <-time.After(Pause):
		}
	}
}
