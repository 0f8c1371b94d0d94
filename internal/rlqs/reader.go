package rlqs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weir-ratelimit/weir/internal/logging"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

// reader receives the messages of one stream.
type reader struct {
	s      *Service
	stream grpc.ServerStream
	box    *outbox
	host   string // that the stream comes from

	ended    chan struct{} // closed when there are no more messages, because of err
	err      error         // nil: the client has said so
	reported chan struct{} // a message has come
	messages atomic.Uint64

	tokens float64 // usages that may come now
	filled time.Time

	mu       sync.Mutex
	to       *Stream // nil until the first message
	domain   string
	isClosed bool
}

// run reads until the stream ends. A panic ends only this stream.
func (r *reader) run() {
	defer close(r.ended)
	defer func() {
		if p := recover(); p != nil {
			r.err = r.s.panicked(r.stream.Context(), "report", p)
		}
	}()
	r.tokens, r.filled = usagesAtOnce, time.Now()
	var m reports
	for {
		if r.err = r.stream.RecvMsg(&m); r.err != nil {
			if errors.Is(r.err, io.EOF) {
				r.err = nil
			}
			return
		}
		r.messages.Add(1)
		r.s.reports.Add(1)
		if err := r.report(&m); err != nil {
			r.s.invalid.Add(1)
			r.err = status.Error(codes.InvalidArgument, err.Error())
			return
		}
		reload.Hint(r.reported)
		r.pace(len(m.usages))
	}
}

// endedByClient reports whether the client has ended the stream, or the connection broke.
func (r *reader) endedByClient() bool {
	select {
	case <-r.ended:
		return r.err == nil || status.Code(r.err) == codes.Canceled
	default:
		return r.stream.Context().Err() != nil
	}
}

// report hands a message to the keeper. The error says what is wrong with it, and what to send.
func (r *reader) report(m *reports) error {
	switch {
	case m.wrong != nil:
		return m.wrong
	case r.domain == "" && m.domain == "":
		return errors.New("domain: must not be empty in the first message; set the domain of Envoy's quota filter")
	case len(m.domain) > maxDomain:
		return fmt.Errorf("domain: must be at most %d bytes, got %d", maxDomain, len(m.domain))
	case r.domain != "" && m.domain != "" && m.domain != r.domain:
		return fmt.Errorf("domain: this stream is of %q, got %q; open another stream for another domain", r.domain,
			m.domain)
	}
	usable := m.usages[:0]
	for _, u := range m.usages {
		r.s.allowed.Add(u.Allowed)
		r.s.denied.Add(u.Denied)
		r.s.o.Reported(u.Allowed, u.Denied)
		if _, err := entriesOf(u.ID, r.s.o.MaxEntries); err != nil {
			r.s.unusable(cmp.Or(r.domain, m.domain), err)
			continue
		}
		usable = append(usable, u)
	}
	m.usages = usable
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isClosed {
		return nil
	}
	if r.to == nil {
		r.domain = m.domain
		r.to = r.s.o.Keeper.Open(r.host, r.domain, nodeOf(r.stream.Context()), r.box)
	}
	r.to.Report(usable)
	return nil
}

// unusable counts a bucket without an assignment, and logs some. Values of requests are not logged.
func (s *Service) unusable(domain string, why error) {
	s.badIDs.Add(1)
	if skipped, ok := s.odd.Allow(time.Now()); ok {
		s.o.Log.LogAttrs(context.Background(), slog.LevelWarn, "a bucket gets no quota, since its entries are not usable",
			slog.String("domain", domain), slog.String("why", why.Error()), slog.Uint64("skipped", skipped))
	}
}

// pace waits if usages come faster than an Envoy sends them.
func (r *reader) pace(usages int) {
	now := time.Now()
	r.tokens = min(usagesAtOnce, r.tokens+now.Sub(r.filled).Seconds()*usagesPerSecond) - float64(max(usages, 1))
	if r.filled = now; r.tokens >= 0 {
		return
	}
	timer := time.NewTimer(time.Duration(-r.tokens / usagesPerSecond * float64(time.Second)))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.stream.Context().Done():
	}
}

// close ends the keeper's stream.
func (r *reader) close(endedByEnvoy bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.isClosed = true
	if r.to != nil {
		r.to.Close(endedByEnvoy)
	}
}

// nodeOf returns who the Envoy says it is.
func nodeOf(ctx context.Context) string {
	md, _ := metadata.FromIncomingContext(ctx)
	if of := md.Get(NodeHeader); len(of) > 0 {
		return logging.Shorten(of[0], maxNode)
	}
	return ""
}
