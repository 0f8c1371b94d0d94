package middleware

import (
	"net/http"

	"github.com/weir-ratelimit/weir/internal/gate"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// HTTPRules returns a middleware that limits requests with the rules of a domain, and counts in store. set returns the
// rules for each request, for example Get of a reload.Reloader. entries returns the descriptors of a request. Either
// all limits for these descriptors are charged one hit, or none. A request without limits passes.
//
// The response to a denied request has the headers and the body of the rule's `response`. If the store fails, the
// OnStoreFailure of the limits applies. Options.FailClosed replaces Local, the default.
func HTTPRules(
	set func() *descriptors.Set, store limiter.Store, domain string,
	entries func(*http.Request) [][]descriptors.Entry, o Options,
) func(http.Handler) http.Handler {
	g := &gate.Gate{FailClosed: o.FailClosed, OnError: o.OnError}
	rules := &gate.Rules{Gate: g, Set: set, Store: store, Domain: domain}
	return serve(g, func(r *http.Request) (gate.Verdict, error) { return rules.Enter(r.Context(), entries(r)) })
}
