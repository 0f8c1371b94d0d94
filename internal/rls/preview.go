package rls

import (
	"context"
	"errors"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Question is a request as people ask it.
type Question struct {
	Domain      string
	Descriptors [][]descriptors.Entry
	// Hits is the cost of each descriptor; 0 is 1.
	Hits uint32
	// Look charges nothing: the answer is what the counters would say to this cost now.
	Look bool
}

// Preview is the answer to a Question, and how it came to be.
type Preview struct {
	// Denied says whether the request as a whole is; Failed that the store did not answer, and Err why.
	Denied, Failed bool
	Err            error
	// Statuses are those of the descriptors, in order.
	Statuses []PreviewStatus
	// Hits are the limits that were asked, in order.
	Hits []PreviewHit
	// Headers and Body are what Envoy adds to the response to the client.
	Headers []descriptors.Header
	Body    string
	// Wait is how long the answer would be held back.
	Wait time.Duration
}

// PreviewStatus is what Envoy is told of one descriptor.
type PreviewStatus struct {
	Over      bool
	Limited   bool // a limit was asked
	Remaining uint32
}

// PreviewHit is a limit that was asked: its Group is the number of the descriptor.
type PreviewHit struct {
	Limit    *descriptors.Limit
	Hit      limiter.Hit
	Decision limiter.Decision
	Outcome  Outcome
}

// Preview answers a question by these rules as a request would be answered, but holds no answer back and tells neither
// the Observer nor the Watchers. With Look the RetryAfter of what does not fit is an upper bound if the cost is above 1. The
// error names the part of the question that is wrong.
func (s *Service) Preview(ctx context.Context, rules *descriptors.Set, q Question) (*Preview, error) {
	sc := s.get()
	defer s.release(sc)
	sc.ask(&q)
	if err := sc.findHits(rules); err != nil {
		return nil, errors.New(status.Convert(err).Message())
	}
	p := &Preview{}
	if len(sc.hits) > 0 {
		if p.Err = s.o.Store.Take(ctx, sc.hits, sc.out); p.Err != nil {
			p.Failed = true
			s.standIn(ctx, sc)
		} else if q.Look {
			sc.lookFor(int64(max(q.Hits, 1)))
		}
	}
	sc.fold()
	return p, sc.preview(p)
}

// ask makes the scratch that of a request which was decoded.
func (sc *scratch) ask(q *Question) {
	sc.domain, sc.addend, sc.descriptors = q.Domain, q.Hits, len(q.Descriptors)
	for _, entries := range q.Descriptors {
		sc.add(entries).addend.present = q.Look
	}
}

// lookFor makes the answers to looks, which say whether one more hit would pass, answers to a cost.
func (sc *scratch) lookFor(cost int64) {
	for i := range sc.out {
		p, d := sc.hits[i].Policy, &sc.out[i]
		owes := p.Algorithm() == limiter.SmoothBursty || p.Algorithm() == limiter.SmoothWarmingUp // a cost is paid for later
		switch {
		case cost > p.Largest():
			d.Allowed, d.RetryAfter = false, limiter.Never
		case cost > 1 && d.Remaining < cost && !owes:
			d.Allowed, d.RetryAfter = false, d.ResetAfter
		}
	}
}

// preview fills in what fold found.
func (sc *scratch) preview(p *Preview) error {
	p.Denied, p.Wait = sc.over, sc.wait()
	for i := range sc.questions {
		st := sc.show(&sc.questions[i], p.Failed)
		p.Statuses = append(p.Statuses, PreviewStatus{Over: st.over, Limited: st.limit != nil, Remaining: st.remaining})
	}
	for i, l := range sc.limits {
		p.Hits = append(p.Hits, PreviewHit{l, sc.hits[i], sc.out[i], sc.outcome(i, p.Failed)})
	}
	encoded, err := sc.report(p.Failed)
	if err != nil {
		return err
	}
	var response pb.RateLimitResponse
	if err := proto.Unmarshal(encoded.buffer, &response); err != nil {
		return err
	}
	for _, h := range response.GetResponseHeadersToAdd() {
		p.Headers = append(p.Headers, descriptors.Header{Name: h.GetKey(), Value: h.GetValue()})
	}
	p.Body = string(response.GetRawBody())
	return nil
}
