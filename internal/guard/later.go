package guard

import (
	"sync"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

var (
	_ limiter.Later = (*Leases)(nil)
	_ limiter.Later = (*Denials)(nil)
	_ limiter.Later = (*Breaker)(nil)
)

// takeLater is TakeLater of a store that may be none.
func takeLater(s limiter.Store, hits []limiter.Hit, out []limiter.Decision, w limiter.Waiter) bool {
	later, ok := s.(limiter.Later)
	return ok && later.TakeLater(hits, out, w)
}

// send is Send of a store that may be no limiter.Later.
func send(s limiter.Store) {
	if later, ok := s.(limiter.Later); ok {
		later.Send()
	}
}

// Hook is what a store that stands before another one learns from each TakeLater. T is what it notes of a request.
type Hook[T any] struct {
	// Learn is called with the outcome before the request's Waiter is.
	Learn func(noted *T, err error)

	waiters sync.Pool // of *waiter[T]
}

// TakeLater is TakeLater of the store behind, which may be no limiter.Later.
func (k *Hook[T]) TakeLater(
	behind limiter.Store, hits []limiter.Hit, out []limiter.Decision, w limiter.Waiter, note T,
) bool {
	x, ok := k.waiters.Get().(*waiter[T])
	if !ok {
		x = &waiter[T]{hook: k}
	}
	x.Waiter, x.noted = w, note
	if takeLater(behind, hits, out, x) {
		return true
	}
	x.free()
	return false
}

// waiter stands before the Waiter of a request.
type waiter[T any] struct {
	limiter.Waiter
	hook  *Hook[T]
	noted T
}

// Taken implements limiter.Waiter.
func (x *waiter[T]) Taken(err error) {
	x.hook.Learn(&x.noted, err)
	x.Waiter.Taken(err)
}

// BatchTaken implements limiter.Waiter.
func (x *waiter[T]) BatchTaken() {
	w := x.Waiter
	x.free()
	w.BatchTaken()
}

func (x *waiter[T]) free() {
	*x = waiter[T]{hook: x.hook}
	x.hook.waiters.Put(x)
}
