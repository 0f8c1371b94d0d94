package offline

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// recordedHit is a hit of a recorded request, and what became of it.
type recordedHit struct {
	Arrival

	isAdmitted bool
	wait       time.Duration
}

// SimulateLog replays a log by the whole rule set, with descriptors, shadow mode, quotas and replaces: each
// limit's run has the hits that it was asked for. Hits that another limit denied are denied. The notes say what the
// numbers do not show.
func SimulateLog(
	ctx context.Context, set *descriptors.Set, in io.Reader, o LogOptions,
) (r *Simulation, log *Log, err error) {
	engine, err := NewEngine(set) //nolint:contextcheck // it ends with Close
	if err != nil {
		return nil, nil, err
	}
	defer engine.Close()
	hits, count := make([][]recordedHit, len(set.Limits())), 0
	log, err = ReadLog(ctx, in, o, []*descriptors.Set{set}, func(request *Request) error {
		v, err := engine.Decide(ctx, request)
		if err != nil {
			return err
		}
		if count += len(v.Hits); count > MaxArrivals {
			return fmt.Errorf("the requests so far ask more than %d limits; cut the log", MaxArrivals)
		}
		record(hits, v, request.At)
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	length := log.To.Sub(log.From).Truncate(time.Second) + time.Second
	r = &Simulation{Options: SimulationOptions{Length: length, Bucket: BucketWidth(length)}, Unit: "requests", IsRecorded: true}
	limits, _ := Limits(set, nil)
	for i, l := range limits {
		r.addRecorded(l, hits[i], log.From.UnixMicro())
	}
	return r, log, nil
}

// record adds the verdict's hits to those of their limits. A limit that a request brings along is no limit of the
// rules.
func record(hits [][]recordedHit, v *decide.Verdict, at int64) {
	for i, l := range v.Limits {
		if l.ID < 0 || v.Hits[i].N == 0 {
			continue
		}
		hit := recordedHit{Arrival: Arrival{At: at, Cost: v.Hits[i].N, Key: v.Hits[i].Key}}
		if hit.isAdmitted = v.Outcome(i) == decide.Allowed; hit.isAdmitted {
			hit.wait = v.Decisions[i].Wait
		}
		hits[l.ID] = append(hits[l.ID], hit)
	}
}

// addRecorded adds the run of one limit. Requests in flight count until they are given back or their lease ends.
func (r *Simulation) addRecorded(l Limit, hits []recordedHit, start int64) {
	o := r.Options
	o.Duration = l.Policy.Window()
	run := newRun(l.Policy, start, o)
	dearest := int64(1)
	for _, h := range hits {
		h.At -= start
		run.giveBack(h.At)
		if h.Cost < 0 {
			run.release(h.Arrival)
			continue
		}
		if h.Cost != 1 {
			r.Unit = "hits"
		}
		dearest = max(dearest, h.Cost)
		run.count(run.counter(h.Key), h.Arrival, h.isAdmitted, h.wait)
	}
	r.Runs = append(r.Runs, LimitRun{Limit: l, Result: run.finish(dearest)})
}

// release ends the oldest request in flight of a counter.
func (r *run) release(a Arrival) {
	c := r.counter(a.Key)
	i := slices.IndexFunc(r.running, func(p pass) bool { return p.of == c })
	if r.policy.Algorithm() == limiter.Concurrency && i >= 0 {
		c.inFlight -= r.running[i].cost
		r.running = slices.Delete(r.running, i, i+1)
	}
}
