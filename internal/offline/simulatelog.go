package offline

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
)

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
	hits, count := make([][]hit, len(set.Limits())), 0
	log, err = ReadLog(ctx, in, o, []*descriptors.Set{set}, func(request *Request) error {
		v, err := engine.Decide(ctx, request)
		if err != nil {
			return err
		}
		if count += len(v.Hits); count > MaxArrivals {
			return fmt.Errorf("the requests so far ask more than %d limits; cut the log", MaxArrivals)
		}
		for id, h := range hitsOf(v, request.At) {
			hits[id] = append(hits[id], h)
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	length := log.To.Sub(log.From).Truncate(time.Second) + time.Second
	r = newSimulation(SimulationOptions{Length: length, Bucket: BucketWidth(length)})
	r.IsRecorded = true
	limits, _ := Limits(set, nil)
	for i, l := range limits {
		run := newRun(l.Policy, log.From.UnixMicro(), r.Options)
		for _, h := range hits[i] {
			run.count(h)
		}
		r.add(l, run)
	}
	return r, log, nil
}
