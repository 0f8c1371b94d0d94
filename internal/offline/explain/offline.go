package explain

import (
	"context"
	"time"

	"github.com/weir-ratelimit/weir/internal/offline"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
)

// begin is when virtual time begins: with a window of every unit up to the week, and of the calendar in UTC.
var begin = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

// Offline is Ask on fresh counters in virtual time, so that the same question always has the same answer.
func Offline(ctx context.Context, rules *descriptors.Set, q Question) (*Report, error) {
	if err := q.chooseDomain(rules); err != nil {
		return nil, err
	}
	engine, err := offline.NewEngine(rules) //nolint:contextcheck // it ends with Close
	if err != nil {
		return nil, err
	}
	defer engine.Close()
	v, err := engine.Decide(ctx, &offline.Request{At: begin.UnixMicro(), Domain: q.Domain, Descriptors: q.descriptors()})
	if err != nil {
		return nil, err
	}
	return newReport(rules, q, v), nil
}
