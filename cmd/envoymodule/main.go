//go:build envoymodule

// Command envoymodule is libweir.so: Weir inside Envoy, as a dynamic module. `make module` builds it. It connects
// Envoy's hooks (hooks.c) to package embedded.
package main

/*
#include <stdlib.h>
#include "abi.h"

#cgo CFLAGS: -Wall
#cgo noescape weir_log
#cgo nocallback weir_log
#cgo noescape weir_wake
#cgo nocallback weir_wake
#cgo noescape weir_unref
#cgo nocallback weir_unref
#cgo noescape weir_wait
#cgo nocallback weir_wait
*/
import "C"

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/weir-ratelimit/weir/internal/embedded"
	"github.com/weir-ratelimit/weir/internal/embedded/actions"
	"github.com/weir-ratelimit/weir/internal/panics"
)

func main() {}

// exitTimeout is the maximum time that Envoy's exit waits for closed filters to stop.
const exitTimeout = 2 * time.Second

var (
	module = &embedded.Module{Log: os.Stderr}

	ids     atomic.Uint64
	configs sync.Map // maps the id of a weir_config to its *config
	cancels sync.Map // maps the id of a weir_waiting to its context.CancelFunc
)

// config is the Go part of a weir_config: a filter or a route.
type config struct {
	filter *embedded.Filter
	route  *embedded.Route
	plan   *actions.Plan
}

//export weirNewFilter
func weirNewFilter(text *C.char, n C.size_t, onlyCheck C.bool, workers C.uint32_t) *C.weir_config {
	return guarded(func() (*C.weir_config, error) {
		data := C.GoBytes(unsafe.Pointer(text), C.int(n))
		if onlyCheck {
			if err := embedded.CheckFilter(data); err != nil {
				return nil, err
			}
			return register(&config{plan: new(actions.Plan)}), nil
		}
		embedded.SetWorkers(int(workers))
		f, err := module.NewFilter(data)
		if err != nil {
			return nil, err
		}
		c := register(&config{filter: f, plan: f.Plan})
		c.request_type, c.resource_exhausted = C.int(f.Type()), C.bool(f.ResourceExhausted())
		c.stat_prefix = toC(f.StatPrefix())
		return c, nil
	})
}

//export weirNewRoute
func weirNewRoute(text *C.char, n C.size_t) *C.weir_config {
	return guarded(func() (*C.weir_config, error) {
		r, err := embedded.ParseRoute(C.GoBytes(unsafe.Pointer(text), C.int(n)))
		if err != nil {
			return nil, err
		}
		return register(&config{route: r, plan: r.Plan}), nil
	})
}

// guarded makes Envoy refuse a configuration that is invalid or panics, and log the reason.
func guarded(make func() (*C.weir_config, error)) (made *C.weir_config) {
	defer func() {
		if why := recover(); why != nil {
			logError(fmt.Sprintf("weir: panic: %v", why))
			made = nil
		}
	}()
	var err error
	panics.Catch("configuration", func() { made, err = make() }) // also counts a panic if there is an instance
	if err != nil {
		logError("weir: " + err.Error())
		return nil
	}
	return made
}

func logError(line string) {
	C.weir_log(C.WEIR_LOG_ERROR, (*C.char)(unsafe.Pointer(unsafe.StringData(line))), C.size_t(len(line)))
}

// register creates the weir_config of a filter or a route.
func register(c *config) *C.weir_config {
	out := (*C.weir_config)(C.calloc(1, C.sizeof_weir_config))
	out.refs = 1
	out.id = C.uint64_t(ids.Add(1))
	fillReads(&out.on_request, c.plan.OnRequest())
	fillReads(&out.on_stream_done, c.plan.OnStreamDone())
	configs.Store(uint64(out.id), c)
	return out
}

// fillReads sets the parts of a request that C must read for a phase. Request headers precede response headers.
func fillReads(out *C.weir_reads, phase *actions.Phase) {
	out.is_empty = C.bool(phase.IsEmpty())
	out.remote, out.destination = C.bool(phase.RemoteAddress), C.bool(phase.DestinationCluster)
	request, response, metadata := phase.Headers, phase.ResponseHeaders, phase.Metadata
	out.headers_n, out.metadata_n = C.size_t(len(request)+len(response)), C.size_t(len(metadata))
	out.headers = (*C.weir_header_name)(C.calloc(out.headers_n, C.sizeof_weir_header_name))
	names := unsafe.Slice(out.headers, int(out.headers_n))
	for i, name := range slices.Concat(request, response) {
		names[i].name, names[i]._map = toC(name), C.WEIR_REQUEST_HEADERS
		if i >= len(request) {
			names[i]._map = C.WEIR_RESPONSE_HEADERS
		}
	}
	out.metadata = (*C.weir_metadata_key)(C.calloc(out.metadata_n, C.sizeof_weir_metadata_key))
	keys := unsafe.Slice(out.metadata, int(out.metadata_n))
	for i, of := range metadata {
		keys[i].source = C.WEIR_DYNAMIC_METADATA
		if of.Source == actions.RouteMetadata {
			keys[i].source = C.WEIR_ROUTE_METADATA
		}
		keys[i].ns, keys[i].key, keys[i].may_be_number = toC(of.Namespace), toC(of.Key), C.bool(of.MayBeNumber)
	}
}

// toC copies a text to C's memory.
func toC(s string) C.weir_text { return C.weir_text{p: C.CString(s), n: C.size_t(len(s))} }

func freeReads(of *C.weir_reads) {
	for _, h := range unsafe.Slice(of.headers, int(of.headers_n)) {
		C.free(unsafe.Pointer(h.name.p))
	}
	for _, m := range unsafe.Slice(of.metadata, int(of.metadata_n)) {
		C.free(unsafe.Pointer(m.ns.p))
		C.free(unsafe.Pointer(m.key.p))
	}
	C.free(unsafe.Pointer(of.headers))
	C.free(unsafe.Pointer(of.metadata))
}

//export weirForget
func weirForget(c *C.weir_config) {
	if known, ok := configs.LoadAndDelete(uint64(c.id)); ok {
		if f := known.(*config).filter; f != nil {
			panics.Catch("end of a filter", f.Close)
		}
	}
	freeReads(&c.on_request)
	freeReads(&c.on_stream_done)
	C.free(unsafe.Pointer(c.stat_prefix.p))
	C.free(unsafe.Pointer(c))
}

// newCall begins a call with the parts of the request that one phase of the plan reads. It returns nil for a forgotten
// config. That does not happen, because Envoy keeps the config of a stream's filter, and the stream keeps its route's.
func newCall(
	filter, route C.uint64_t, r *C.weir_request, phaseOf func(*actions.Plan) *actions.Phase,
) *embedded.Call {
	known, ok := configs.Load(uint64(filter))
	if !ok {
		return nil
	}
	f := known.(*config)
	of := f
	if route != 0 {
		if known, ok = configs.Load(uint64(route)); !ok {
			return nil
		}
		of = known.(*config)
	}
	call, phase := f.filter.Call(of.route), phaseOf(of.plan)
	names := phase.Headers
	for _, v := range unsafe.Slice(r.values, int(r.values_n)) {
		if i := int(v.header); i < len(names) {
			call.AddHeader(names[i], view(v.text))
		} else {
			call.AddResponseHeader(phase.ResponseHeaders[i-len(names)], view(v.text))
		}
	}
	for _, v := range unsafe.Slice(r.metadata, int(r.metadata_n)) {
		value := actions.MetadataValue{Number: float64(v.number), IsNumber: true}
		if !v.is_number {
			value = actions.MetadataValue{Text: view(v.text)}
		}
		call.AddMetadata(phase.Metadata[v.key], value)
	}
	if r.remote.p != nil {
		call.SetRemote(viewString(r.remote))
	}
	if r.destination.p != nil {
		call.SetDestinationCluster(view(r.destination))
	}
	return call
}

// weirDecide decides a request. It fills the answer and returns nil, or returns a weir_waiting for a later answer.
// After a panic, failure_mode_deny decides.
//
//export weirDecide
func weirDecide(filter, route C.uint64_t, r *C.weir_request, out *C.weir_answer) (w *C.weir_waiting) {
	if panics.Catch("request", func() { w = decide(filter, route, r, out) }) {
		var a embedded.Answer
		known, _ := configs.Load(uint64(filter))
		known.(*config).filter.Fail(&a)
		fill(out, &a)
	}
	return w
}

// decide is weirDecide without catching panics.
func decide(filter, route C.uint64_t, r *C.weir_request, out *C.weir_answer) *C.weir_waiting {
	call := newCall(filter, route, r, (*actions.Plan).OnRequest)
	if call == nil {
		return nil
	}
	if call.Decide() {
		fill(out, &call.Answer)
		call.Release()
		return nil
	}
	p, _ := pendings.Get().(*pending) // pendings.New always returns a *pending
	w := C.weir_wait(r.envoy)
	p.w, p.worker = w, w.worker
	if call.MayWait() { // Envoy cancels the request through id, so that its delay ends
		ctx, cancel := context.WithCancel(context.Background())
		p.id = ids.Add(1)
		w.id = C.uint64_t(p.id)
		cancels.Store(p.id, cancel)
		call.Later(ctx, p)
	} else {
		call.Later(p, p)
	}
	return w
}

// pending is a request that waits for its answer, and the context of a request that cannot be delayed.
type pending struct {
	context.Context //nolint:containedctx // the background

	w      *C.weir_waiting // Go's reference, until Answered
	worker *C.weir_worker
	id     uint64 // key in cancels, or 0
}

var pendings = sync.Pool{New: func() any { return &pending{Context: context.Background()} }}

// state returns the address of C's state.
func (p *pending) state() *int32 { return (*int32)(unsafe.Pointer(&p.w.state)) }

// Answered implements embedded.Waiter.
func (p *pending) Answered(call *embedded.Call) (inTime bool) {
	w := p.w
	fill(&w.answer, &call.Answer)
	if !atomic.CompareAndSwapInt32(p.state(), C.WEIR_PENDING, C.WEIR_ANSWERED) {
		C.weir_unref(w)
		return false
	}
	answered := (*unsafe.Pointer)(unsafe.Pointer(&p.worker.answered))
	for {
		before := atomic.LoadPointer(answered)
		w.next = (*C.weir_waiting)(before)
		if atomic.CompareAndSwapPointer(answered, before, unsafe.Pointer(w)) {
			return true
		}
	}
}

// Ended implements embedded.Waiter. One event delivers all answers of a batch to the worker.
func (p *pending) Ended() {
	if p.id != 0 {
		weirCancel(C.uint64_t(p.id))
	}
	worker := p.worker
	p.w, p.worker, p.id = nil, nil, 0
	pendings.Put(p)
	answered := (*unsafe.Pointer)(unsafe.Pointer(&worker.answered))
	carrier := (*unsafe.Pointer)(unsafe.Pointer(&worker.carrier))
	if atomic.LoadPointer(answered) != nil && atomic.LoadPointer(carrier) == nil {
		C.weir_wake(worker)
	}
}

// Err implements context.Context.
func (p *pending) Err() error {
	if atomic.LoadInt32(p.state()) == C.WEIR_GONE {
		return context.Canceled
	}
	return nil
}

// weirSend sends the requests that Call.Later has collected.
//
//export weirSend
func weirSend() { panics.Catch("send", module.Send) }

// weirStreamDone charges the cost of the end of a stream.
//
//export weirStreamDone
func weirStreamDone(filter, route C.uint64_t, r *C.weir_request) {
	panics.Catch("end of a stream", func() {
		if call := newCall(filter, route, r, (*actions.Plan).OnStreamDone); call != nil {
			call.StreamDone()
		}
	})
}

//export weirCancel
func weirCancel(id C.uint64_t) {
	if cancel, ok := cancels.LoadAndDelete(uint64(id)); ok {
		panics.Catch("cancelled request", cancel.(context.CancelFunc))
	}
}

//export weirExit
func weirExit() { panics.Catch("exit", func() { module.Wait(exitTimeout) }) }

// view returns a view of Envoy's text, which is valid until the hook returns.
func view(t C.weir_text) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(t.p)), int(t.n)) }

func viewString(t C.weir_text) string { return unsafe.String((*byte)(unsafe.Pointer(t.p)), int(t.n)) }

// details are the values of embedded.Answer.Details, in C's memory.
var details = map[string]C.weir_text{}

func init() {
	for _, text := range embedded.Details() {
		details[text] = C.weir_text{p: C.CString(text), n: C.size_t(len(text))}
	}
}

// fill copies an answer to C's memory. It drops headers beyond WEIR_HEADERS, more than rules and the filter can set.
func fill(out *C.weir_answer, a *embedded.Answer) {
	out.outcome, out.status, out.details = C.int(a.Outcome), C.uint32_t(a.Status), details[a.Details]
	headers := a.Headers[:min(len(a.Headers), C.WEIR_HEADERS)]
	size := len(a.Body) + len(a.Metadata)
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
	to = to[copy(to, a.Body):]
	copy(to, a.Metadata)
	out.headers, out.body, out.metadata = C.size_t(len(headers)), C.size_t(len(a.Body)), C.size_t(len(a.Metadata))
}
