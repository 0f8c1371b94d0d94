//go:build envoymodule

// Command envoymodule is libweir.so: Weir inside Envoy, as a dynamic module. `make module` builds it. It joins Envoy's
// hooks (hooks.c) to package embedded.
package main

/*
#include <stdlib.h>
#include "abi.h"

#cgo CFLAGS: -Wall
#cgo noescape weir_log
#cgo nocallback weir_log
#cgo noescape weir_answered
#cgo nocallback weir_answered
*/
import "C"

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/weir-ratelimit/weir/internal/actions"
	"github.com/weir-ratelimit/weir/internal/embedded"
)

func main() {}

// exitTimeout is how long Envoy's exit may take for what filters have closed.
const exitTimeout = 2 * time.Second

var (
	module = &embedded.Module{Log: os.Stderr}

	ids     atomic.Uint64
	configs sync.Map // from the id of a weir_config to its *config
	cancels sync.Map // from the id of a weir_waiting to its context.CancelFunc
)

// config is what a weir_config stands for: a filter or a route.
type config struct {
	filter *embedded.Filter
	route  *embedded.Route
	names  []string // of the headers
}

//export weirNewFilter
func weirNewFilter(text *C.char, n C.size_t, onlyCheck C.bool) *C.weir_config {
	return guarded(func() (*C.weir_config, error) {
		data := C.GoBytes(unsafe.Pointer(text), C.int(n))
		if onlyCheck {
			return (*C.weir_config)(C.calloc(1, C.sizeof_weir_config)), module.CheckFilter(data)
		}
		f, err := module.NewFilter(data)
		if err != nil {
			return nil, err
		}
		return register(&config{filter: f}, f.Plan()), nil
	})
}

//export weirNewRoute
func weirNewRoute(text *C.char, n C.size_t) *C.weir_config {
	return guarded(func() (*C.weir_config, error) {
		r, err := embedded.ParseRoute(C.GoBytes(unsafe.Pointer(text), C.int(n)))
		if err != nil {
			return nil, err
		}
		return register(&config{route: r}, r.Plan()), nil
	})
}

// guarded has Envoy refuse a configuration that is wrong or panics, and log why.
func guarded(make func() (*C.weir_config, error)) (made *C.weir_config) {
	defer func() {
		if why := recover(); why != nil {
			logError(fmt.Sprintf("weir: panic: %v", why))
			made = nil
		}
	}()
	made, err := make()
	if err != nil {
		logError("weir: " + err.Error())
		return nil
	}
	return made
}

func logError(line string) {
	C.weir_log(C.WEIR_LOG_ERROR, (*C.char)(unsafe.Pointer(unsafe.StringData(line))), C.size_t(len(line)))
}

// register makes the weir_config of a filter or a route.
func register(c *config, plan *actions.Plan) *C.weir_config {
	c.names = plan.Headers()
	out := (*C.weir_config)(C.calloc(1, C.sizeof_weir_config))
	out.id = C.uint64_t(ids.Add(1))
	out.is_empty = C.bool(plan.IsEmpty())
	out.remote, out.destination = C.bool(plan.ReadsRemoteAddress()), C.bool(plan.ReadsDestinationCluster())
	if n := len(c.names); n > 0 {
		out.headers_n = C.size_t(n)
		out.headers = (*C.weir_text)(C.calloc(C.size_t(n), C.sizeof_weir_text))
		texts := unsafe.Slice(out.headers, n)
		for i, name := range c.names {
			texts[i] = C.weir_text{p: C.CString(name), n: C.size_t(len(name))}
		}
	}
	configs.Store(uint64(out.id), c)
	return out
}

//export weirForget
func weirForget(c *C.weir_config) {
	if c == nil {
		return
	}
	if known, ok := configs.LoadAndDelete(uint64(c.id)); ok {
		if f := known.(*config).filter; f != nil {
			f.Close()
		}
	}
	for _, text := range unsafe.Slice(c.headers, int(c.headers_n)) {
		C.free(unsafe.Pointer(text.p))
	}
	C.free(unsafe.Pointer(c.headers))
	C.free(unsafe.Pointer(c))
}

// weirDecide decides a request: it fills the answer and returns nil, or returns what waits for the answer.
//
//export weirDecide
func weirDecide(filter, route C.uint64_t, r *C.weir_request, out *C.weir_answer) *C.weir_waiting {
	known, ok := configs.Load(uint64(filter))
	if !ok {
		return nil // not reached: Envoy keeps the filter_config of a stream
	}
	f := known.(*config)
	of := f
	if route != 0 {
		if known, ok = configs.Load(uint64(route)); !ok {
			return nil // as above
		}
		of = known.(*config)
	}
	call := f.filter.Call(of.route)
	for _, v := range unsafe.Slice(r.values, int(r.values_n)) {
		call.AddHeader(of.names[v.header], view(v.text))
	}
	if r.remote.p != nil {
		call.SetRemote(viewString(r.remote))
	}
	if r.destination.p != nil {
		call.SetDestinationCluster(view(r.destination))
	}
	if call.Decide() {
		fill(out, &call.Answer)
		call.Release()
		return nil
	}
	w, id := C.weir_wait(r.envoy), ids.Add(1)
	w.id = C.uint64_t(id)
	ctx, cancel := context.WithCancel(context.Background())
	cancels.Store(id, cancel)
	call.DecideLater(ctx, func() {
		cancels.Delete(id)
		cancel()
		fill(&w.answer, &call.Answer)
		call.Release()
		C.weir_answered(w)
	})
	return w
}

//export weirCancel
func weirCancel(id C.uint64_t) {
	if cancel, ok := cancels.LoadAndDelete(uint64(id)); ok {
		cancel.(context.CancelFunc)()
	}
}

//export weirExit
func weirExit() { module.Wait(exitTimeout) }

// view is Envoy's text, which stays until the hook returns.
func view(t C.weir_text) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(t.p)), int(t.n)) }

func viewString(t C.weir_text) string { return unsafe.String((*byte)(unsafe.Pointer(t.p)), int(t.n)) }

// details are the constants of embedded.Answer.Details, in C's memory.
var details = map[string]C.weir_text{}

func init() {
	for _, text := range embedded.Details() {
		details[text] = C.weir_text{p: C.CString(text), n: C.size_t(len(text))}
	}
}

// fill copies an answer into C's memory. Headers beyond the room for them are left out: no rule can have so many.
func fill(out *C.weir_answer, a *embedded.Answer) {
	out.outcome, out.status, out.details = C.int(a.Outcome), C.uint32_t(a.Status), details[a.Details]
	headers := a.Headers[:min(len(a.Headers), C.WEIR_HEADERS)]
	size := len(a.Body)
	for _, h := range headers {
		size += len(h.Name) + len(h.Value)
	}
	if size > C.WEIR_TEXT {
		out.text = (*C.char)(C.malloc(C.size_t(size)))
	}
	to := unsafe.Slice((*byte)(unsafe.Pointer(out.text)), size)
	for i, h := range headers {
		out.lengths[2*i], out.lengths[2*i+1] = C.uint32_t(len(h.Name)), C.uint32_t(len(h.Value))
		to = to[copy(to, h.Name):]
		to = to[copy(to, h.Value):]
	}
	copy(to, a.Body)
	out.headers, out.body = C.size_t(len(headers)), C.size_t(len(a.Body))
}
