package rls

import (
	"context"
	"time"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Watcher looks at whole requests, where an Observer counts the parts of them: for busiest keys, a log of decisions, traces.
// Watch is called once for each request that was decided, before its answer leaves: it must be quick, must not block, and must
// be safe for concurrent use.
type Watcher interface {
	Watch(ctx context.Context, v View)
}

// View is a decided request. It is valid only during the call that it is passed to, and so are the texts of its domain and
// entries: clone what is kept. A counter key may be kept as it is.
type View struct {
	sc     *scratch
	failed bool
}

// Domain is the request's.
func (v View) Domain() string { return v.sc.domain }

// Denied says whether the request as a whole was denied.
func (v View) Denied() bool { return v.sc.over }

// Failed says that the store did not answer, and that each limit's on_store_failure decided.
func (v View) Failed() bool { return v.failed }

// Descriptors is how many the request has.
func (v View) Descriptors() int { return len(v.sc.questions) }

// Entries are those of descriptor i.
func (v View) Entries(i int) []descriptors.Entry {
	q := &v.sc.questions[i]
	return v.sc.entries[q.from:q.to]
}

// Rule is the one that descriptor i matched, nil if none.
func (v View) Rule(i int) *descriptors.Rule { return v.sc.questions[i].rule }

// Cost is what descriptor i asked for, in hits: 0 looks, below 0 gives back.
func (v View) Cost(i int) int64 { return v.sc.questions[i].n }

// Own is the limit that descriptor i brought along: requests per window. The window is 0 if it brought none.
func (v View) Own(i int) (requests uint32, window time.Duration) {
	q := &v.sc.questions[i]
	return q.own.requests, q.window
}

// Hits is how many limits were asked.
func (v View) Hits() int { return len(v.sc.hits) }

// Hit is the limit that was asked i-th. Its descriptor is number Hit.Group.
func (v View) Hit(i int) (*descriptors.Limit, limiter.Hit, limiter.Decision, Outcome) {
	return v.sc.limits[i], v.sc.hits[i], v.sc.out[i], v.sc.outcome(i, v.failed)
}

func (s *Service) watch(ctx context.Context, sc *scratch, failed bool) {
	for _, w := range s.o.Watchers {
		w.Watch(ctx, View{sc, failed})
	}
}
