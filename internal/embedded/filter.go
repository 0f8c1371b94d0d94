package embedded

import (
	"sync"
	"sync/atomic"

	"github.com/weir-ratelimit/weir/internal/decide"
)

// Filter is a filter_config: what limits the requests of a listener. It is safe for concurrent use.
type Filter struct {
	*settings

	module   *Module
	instance *instance
	decider  *decide.Decider
	calls    sync.Pool // of *Call
	closed   atomic.Bool
	// uses is 1 for the filter_config, and 1 for each request that is decided later: the instance outlives them.
	uses atomic.Int64
}

func newFilter(m *Module, in *instance, s *settings) *Filter {
	f := &Filter{settings: s, module: m, instance: in, decider: in.app.Decider()}
	f.uses.Store(1)
	f.calls.New = func() any { return &Call{filter: f, request: f.decider.NewRequest()} }
	return f
}

// Close ends the use of the filter. Requests that are decided later keep what they need.
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

// Fail makes the answer of a request that cannot be decided: failure_mode_deny says which.
func (f *Filter) Fail(a *Answer) {
	a.reset()
	a.Outcome = Failed
	if f.envoy.GetFailureModeDeny() {
		a.Status, a.Details = uint32(f.errorStatus), detailsError //nolint:gosec // 200 to 599
	}
}

// Type says which requests the filter limits. Others pass, and have no end either.
func (f *Filter) Type() RequestType { return requestTypes[f.envoy.GetRequestType()] }

// StatPrefix begins the names of the filter's counters.
func (f *Filter) StatPrefix() string { return f.envoy.GetStatPrefix() }

// ResourceExhausted reports whether gRPC clients of denied requests get that status.
func (f *Filter) ResourceExhausted() bool { return f.envoy.GetRateLimitedAsResourceExhausted() }
