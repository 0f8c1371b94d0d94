package explain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/offline"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
)

// MaxNext bounds the requests of one simulation.
const MaxNext = 1_000_000

// Span are requests one after the other that are answered alike.
type Span struct {
	// From and To are their numbers; the first of all is 1.
	From int `json:"from"`
	To   int `json:"to"`
	// At is when the first of them comes, in seconds.
	At   float64 `json:"at_seconds"`
	Code string  `json:"code"`
	// DeniedBy are the limits that deny them.
	DeniedBy []string `json:"denied_by,omitempty"`
	// Remaining are the least that a limit has left after the first and after the last of them; nil if no limit applies.
	Remaining *[2]uint32 `json:"remaining,omitempty"`
	// RetryAfter is the first one's Retry-After, zero if they are not denied.
	RetryAfter RetryAfter `json:"retry_after_seconds,omitzero"`
	// Wait is how long the last of them would be delayed.
	Wait float64 `json:"wait_seconds,omitempty"`
}

// begin is when virtual time begins: with a window of every unit up to the week, and of the calendar in UTC.
var begin = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

// Offline is Ask on fresh counters in virtual time, so that the same question always has the same answer. With more
// than one request, one after each time every, it reports where the answer changes.
func Offline(
	ctx context.Context, rules *descriptors.Set, q Question, requests int, every time.Duration,
) (*Report, error) {
	if err := q.chooseDomain(rules); err != nil {
		return nil, err
	}
	engine, err := offline.NewEngine(rules) //nolint:contextcheck // it ends with Close
	if err != nil {
		return nil, err
	}
	defer engine.Close()
	request := offline.Request{At: begin.UnixMicro(), Domain: q.Domain, Descriptors: q.descriptors()}
	var r *Report
	var spans []Span
	for i := range max(requests, 1) {
		if ctx.Err() != nil {
			return nil, errors.New("interrupted")
		}
		v, err := engine.Decide(ctx, &request)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			r = newReport(rules, q, v)
		}
		next := newSpan(i+1, every*time.Duration(i), answer(v), v.Statuses)
		if i == 0 || !spans[len(spans)-1].join(&next) {
			spans = append(spans, next)
		}
		if len(spans) > maxSpans {
			return nil, fmt.Errorf("the answer changes more than %d times in %d requests; "+
				"ask for fewer of them, or draw it with weir simulate", maxSpans, requests)
		}
		request.At += every.Microseconds()
	}
	if requests > 1 {
		r.Next = spans
	}
	return r, nil
}

// maxSpans bounds the report.
const maxSpans = 1000

func newSpan(i int, at time.Duration, a Answer, statuses []decide.Status) Span {
	s := Span{From: i, To: i, At: at.Seconds(), Code: a.Code, DeniedBy: a.DeniedBy, RetryAfter: a.RetryAfter, Wait: a.Wait}
	for i := range statuses {
		remaining := decide.Saturate(statuses[i].Remaining)
		if statuses[i].Limit != nil && (s.Remaining == nil || remaining < s.Remaining[0]) {
			s.Remaining = &[2]uint32{remaining, remaining}
		}
	}
	return s
}

// join makes next a part of the span if it is answered alike.
func (s *Span) join(next *Span) bool {
	if s.Code != next.Code || !slices.Equal(s.DeniedBy, next.DeniedBy) {
		return false
	}
	s.To, s.Wait = next.To, next.Wait
	if s.Remaining != nil && next.Remaining != nil {
		s.Remaining[1] = next.Remaining[1]
	}
	return true
}
