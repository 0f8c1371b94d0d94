// Package replay runs recorded traffic through two rule sets in virtual time, by the service's own matching and steps over
// memory, and says which requests one of them denies and the other does not. The log is read once, and not held in memory.
package replay

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/decisionlog"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
)

// Bounds of what is held in memory.
const (
	maxCounters = 1_000_000 // of each set
	maxWaiting  = 10_000    // lines that are put in order
	maxBytes    = 64 << 20  // of these
	maxKeys     = 100_000   // that are counted, of all rules together
	maxBad      = 5         // lines that are shown
	maxRepeats  = 100       // of a line that stands for many requests
)

// Options are what the log is.
type Options struct {
	// Mappings are the descriptors that an access log's requests have. Nil: it is the sidecar's decision log.
	Mappings [][]Mapping
	// Domain and TimeField are of an access log.
	Domain, TimeField string
	// Key is the secret of a decision log's hashes, nil if it is not known.
	Key []byte
	// Top is how many keys of a rule are shown.
	Top int
}

// Run replays the log. The error is that of reading, or that no line is of use.
func Run(ctx context.Context, before, after *descriptors.Set, log io.Reader, o Options) (*Report, error) {
	r, err := newRun(before, after, o) //nolint:contextcheck // the stores end with close
	if err != nil {
		return nil, err
	}
	defer r.close()
	parse := r.parser(before, after)
	err = eachLine(log, func(number int64, line []byte) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return r.line(ctx, parse, number, line)
	})
	for err == nil && len(r.waiting) > 0 {
		r.next(ctx)
	}
	if err != nil {
		return nil, err
	}
	if r.report.Requests == 0 && r.report.BadLines > 0 {
		return nil, fmt.Errorf("no line is of use; line %d: %s", r.report.Bad[0].Line, r.report.Bad[0].Error)
	}
	r.finish(before, after)
	return r.report, nil
}

// run is a replay in progress.
type run struct {
	o       Options
	clock   atomic.Int64 // the last request's time; the stores' sweepers read it, too
	sides   [2]side      // before and after
	waiting waiting
	bytes   int     // of waiting
	owed    float64 // the part of a request that rounded weights have left over
	hashed  bool
	rules   map[countedRule]*RuleCount
	keys    map[countedKey]*KeyCount
	report  *Report
}

func newRun(before, after *descriptors.Set, o Options) (*run, error) {
	r := &run{o: o, report: &Report{}, keys: map[countedKey]*KeyCount{}, rules: map[countedRule]*RuleCount{}}
	for i, set := range []*descriptors.Set{before, after} {
		if err := r.sides[i].open(set, &r.clock); err != nil {
			r.close()
			return nil, err
		}
	}
	return r, nil
}

func (r *run) close() {
	for i := range r.sides {
		if r.sides[i].store != nil {
			r.sides[i].store.Close() //nolint:errcheck,gosec // never fails
		}
	}
}

// side is one of the two sets at work.
type side struct {
	decider *decide.Decider
	request *decide.Request
	store   *memstore.Store
	verdict *decide.Verdict
}

func (s *side) open(set *descriptors.Set, clock *atomic.Int64) (err error) {
	if s.store, err = memstore.New(memstore.Options{MaxKeys: maxCounters, Now: clock.Load}); err != nil {
		return err
	}
	s.decider, err = decide.New(decide.Options{
		Rules: func() *descriptors.Set { return set }, Store: s.store,
		MaxDescriptors: math.MaxInt, MaxEntries: math.MaxInt, MaxEntryBytes: math.MaxInt,
	})
	if err == nil {
		s.request = s.decider.NewRequest()
	}
	return err
}

// decide decides a request whose descriptors cost n times as much.
func (s *side) decide(ctx context.Context, q *request, n int64) (err error) {
	s.request.Reset()
	s.request.Domain = q.domain
	for _, d := range q.asked {
		d.Cost = max(-limiter.MaxHits, min(d.Cost*n, limiter.MaxHits))
		s.request.Add(d)
	}
	if s.verdict, err = s.decider.Decide(ctx, s.request); err == nil {
		s.verdict.Delay().End()
	}
	return err
}

func (r *run) parser(sets ...*descriptors.Set) parser {
	if r.o.Mappings != nil {
		return accesses(r.o.Domain, r.o.TimeField, r.o.Mappings)
	}
	unhash := map[string]string{}
	if r.o.Key != nil {
		hash := decisionlog.HashValues(r.o.Key)
		for _, set := range sets {
			set.EachValue(func(key, value string) { unhash[hash(key, value)] = value })
		}
	}
	return decisions(unhash, &r.report.DroppedLines, &r.hashed)
}

// line puts a line's request in order, and replays those that no later line can come before.
func (r *run) line(ctx context.Context, parse parser, number int64, text []byte) error {
	if text != nil && len(strings.TrimSpace(string(text))) == 0 {
		return nil
	}
	r.report.Lines++
	q, err := (*request)(nil), fmt.Errorf("is longer than %d bytes", maxLine)
	if text != nil {
		q, err = parse(text)
	}
	if err != nil {
		r.bad(number, err)
		return nil
	}
	if q == nil {
		r.report.NotAsked++
		return nil
	}
	q.line, q.size = number, 2*len(text)
	heap.Push(&r.waiting, q)
	r.bytes += q.size
	for len(r.waiting) > maxWaiting || r.bytes > maxBytes {
		r.next(ctx)
	}
	return nil
}

func (r *run) bad(number int64, err error) {
	r.report.BadLines++
	if len(r.report.Bad) < maxBad {
		r.report.Bad = append(r.report.Bad, BadLine{number, err.Error()})
	}
}

// next replays the earliest of the waiting requests.
func (r *run) next(ctx context.Context) {
	q, ok := heap.Pop(&r.waiting).(*request)
	if !ok {
		return
	}
	r.bytes -= q.size
	now := r.clock.Load()
	switch {
	case now == 0:
		r.report.From = time.UnixMicro(q.at).UTC()
	case q.at < now:
		r.report.LateLines++
		q.at = now
	}
	r.clock.Store(q.at)
	r.report.To = time.UnixMicro(q.at).UTC()
	if q.weight != 1 {
		r.report.Estimate = true
	}
	r.owed += q.weight
	n := int64(r.owed)
	r.owed -= float64(n)
	for each := (n + maxRepeats - 1) / maxRepeats; n > 0; n -= each {
		each = min(each, n)
		if err := r.ask(ctx, q, each); err != nil {
			r.bad(q.line, err)
			return
		}
	}
}

// ask has both sides decide a request that stands for n of them.
func (r *run) ask(ctx context.Context, q *request, n int64) error {
	var errs []error
	for i := range r.sides {
		errs = append(errs, r.sides[i].decide(ctx, q, n))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	r.count(n)
	return nil
}

// waiting is a heap of requests by time, those of one time in their order.
type waiting []*request

func (w waiting) Len() int { return len(w) }
func (w waiting) Less(i, j int) bool {
	return w[i].at < w[j].at || w[i].at == w[j].at && w[i].line < w[j].line
}
func (w waiting) Swap(i, j int) { w[i], w[j] = w[j], w[i] }

// Push implements heap.Interface.
func (w *waiting) Push(v any) {
	if q, ok := v.(*request); ok {
		*w = append(*w, q)
	}
}

// Pop implements heap.Interface.
func (w *waiting) Pop() any {
	last := len(*w) - 1
	q := (*w)[last]
	(*w)[last] = nil
	*w = (*w)[:last]
	return q
}

// total adds without overflow.
func total(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
