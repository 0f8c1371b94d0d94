package rls

import (
	"context"
	"time"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
)

// Asked is a descriptor that is asked without a wire.
type Asked struct {
	Entries []descriptors.Entry
	Cost    int64 // hits: 0 looks, below 0 gives back
	// Requests per Window is the limit that it brings along. A Window of 0 is none.
	Requests uint32
	Window   time.Duration
}

// Ask decides a request that no Envoy sent, over the same rules and store and by the same steps, and shows it to the
// Watchers. What ShouldRateLimit would hold back is not. The error says which limit that a question brought along is none,
// that they ask too many counters, or that ctx is done.
func (s *Service) Ask(ctx context.Context, domain string, questions []Asked) error {
	sc := s.get()
	defer s.release(sc)
	sc.domain = domain
	for _, asked := range questions {
		q := sc.add(asked.Entries)
		q.n, q.window = asked.Cost, asked.Window
		q.own = override{present: asked.Window != 0, requests: asked.Requests}
	}
	if rules := s.o.Rules(); rules != nil && rules.Domain(domain) != nil {
		if err := sc.match(rules.Domain(domain)); err != nil {
			return err
		}
		if err := sc.count(); err != nil {
			return err
		}
	}
	failed, err := s.take(ctx, sc)
	if err != nil {
		return err
	}
	sc.fold()
	s.observe(sc, failed)
	s.watch(ctx, sc, failed)
	return nil
}
