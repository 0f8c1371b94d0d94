package embedded

import (
	"sync"
	"sync/atomic"

	"github.com/weir-ratelimit/weir/internal/decide"
)

// Filter is a compiled filter_config. It is safe for concurrent use.
type Filter struct {
	*settings

	module   *Module
	instance *instance
	decider  *decide.Decider
	calls    sync.Pool // pool of *Call
	closed   atomic.Bool
	// uses is 1 for the filter_config plus 1 per request that is decided later. The instance is released at 0.
	uses atomic.Int64
}

func newFilter(m *Module, in *instance, s *settings) *Filter {
	f := &Filter{settings: s, module: m, instance: in, decider: in.app.Decider()}
	f.uses.Store(1)
	f.calls.New = func() any { return &Call{filter: f, request: f.decider.NewRequest()} }
	return f
}

// Close ends the use of the filter. Requests that are decided later can still complete.
func (f *Filter) Close() {
	if !f.closed.Swap(true) {
		f.drop()
	}
}

// drop ends one use.
func (f *Filter) drop() {
	if f.uses.Add(-1) == 0 {
		f.module.release(f.instance)
	}
}

// Fail sets the answer for a request that cannot be decided, according to failure_mode_deny.
func (f *Filter) Fail(a *Answer) {
	a.reset()
	a.Outcome = Failed
	if f.envoy.GetFailureModeDeny() {
		a.Status, a.Details = uint32(f.errorStatus), detailsError //nolint:gosec // 200 to 599
	}
}

// Type returns the type of requests that the filter limits. For other requests, call neither Decide nor StreamDone.
func (f *Filter) Type() RequestType { return requestTypes[f.envoy.GetRequestType()] }

// StatPrefix returns the prefix of the names of the filter's counters.
func (f *Filter) StatPrefix() string { return f.envoy.GetStatPrefix() }

// ResourceExhausted reports whether gRPC clients of denied requests get the status RESOURCE_EXHAUSTED.
func (f *Filter) ResourceExhausted() bool { return f.envoy.GetRateLimitedAsResourceExhausted() }
