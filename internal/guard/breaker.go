package guard

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-ratelimit/weir/internal/panics"
	"github.com/weir-ratelimit/weir/internal/take"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

var _ take.Stage = (*Breaker)(nil)

// ErrNotAsked is wrapped by the errors of a Breaker that is open.
var ErrNotAsked = errors.New("the store was not queried, since it does not answer")

// Of a Breaker.
const (
	// silence is how long nothing may have been answered, though it was asked, before the breaker opens.
	silence = 50 * time.Millisecond
	// firstPause and longestPause are between probes: each is twice as long as the one before.
	firstPause   = 5 * time.Millisecond
	longestPause = 200 * time.Millisecond
	// maxShards is the most shards of a cluster that are watched at once: as many masters as Redis recommends at most.
	maxShards = 1000
)

// Server is one of the servers behind a store, or a cluster of them.
type Server interface {
	// Probe asks for a sign of life. It takes no longer than a request may: a server that is too slow for requests is
	// not back.
	Probe(ctx context.Context) error
	// Shard is who decides a key in a cluster. It is empty for what is no cluster, and while that is not known. It does
	// not wait, and is not called on the way of a request while all shards answer, but for leases.
	Shard(key string) string
	// ProbeShard is Probe of whoever has the key by now.
	ProbeShard(ctx context.Context, key string) error
}

// BreakerOptions are a Breaker's parts.
type BreakerOptions struct {
	// Servers are those that decide, by the names that routes have for them; the first one has none.
	Servers map[string]Server
	// Answered says whether an error, of a call or of a probe, is an answer: the server is there, and says no.
	Answered func(err error) bool
	// Failures calls each for every server that an error of a call is about, by its name in Servers and, in a cluster, its
	// shard, with that server's own error. Nil, or an error that names nobody: there is only one server.
	Failures func(err error, each func(server, shard string, why error))
}

// Breaker stops asking a server that does not answer: it is open from when nothing has been answered for a while, and
// calls fail at once, without a wait, a goroutine or an allocation. Meanwhile the server is probed, by one call at a
// time, and asked again from the first answer on.
//
// Only silence opens it. A server that answers with errors is still asked: they cost no wait, and may be a request's
// own. Each server of a store that has several is watched by itself, and so is each shard of a cluster. Of shards only
// those are kept that are silent: while all is well they cost nothing.
type Breaker struct {
	o      BreakerOptions
	start  time.Time
	first  *server            // the one without a name
	all    map[string]*server // by their names, also the first
	opened chan *watched      // for Run
}

// server is one server as a whole, and those of its shards that do not answer.
type server struct {
	Server
	whole  watched
	mu     sync.Mutex                          // held to change shards
	shards atomic.Pointer[map[string]*watched] // nil: none
}

// watched is a server or a shard.
type watched struct {
	probe    func(ctx context.Context) error
	answered func()                // it is well
	silent   atomic.Int64          // when the first call failed since the latest answer, time since start; 0: none has
	why      atomic.Pointer[error] // the error of calls while it is not asked
}

// NewBreaker makes a breaker for the servers. Once open, it closes only while Run runs.
func NewBreaker(o BreakerOptions) *Breaker {
	b := &Breaker{o: o, start: time.Now(), all: make(map[string]*server)}
	for name, s := range o.Servers {
		w := &server{Server: s}
		w.whole.probe, w.whole.answered = s.Probe, func() {}
		b.all[name] = w
	}
	b.opened = make(chan *watched, len(b.all)*maxShards)
	b.first = b.all[""]
	return b
}

// Open is how many servers, and shards of them, are not asked.
func (b *Breaker) Open() (open int) {
	for _, s := range b.all {
		open += s.open()
	}
	return open
}

// Shard returns which server decides a hit, as far as that is known without asking. It allocates nothing.
func (b *Breaker) Shard(h *limiter.Hit) Shard {
	return Shard{Store: h.StoreName(), Address: b.server(h).Shard(h.Key)}
}

// Before implements take.Stage. It fails calls to servers that are not asked.
func (b *Breaker) Before(c *take.Call) (answered bool) {
	why := b.notAsked(c.Hits)
	if why != nil {
		c.Err = *why
	}
	return why != nil
}

// After implements take.Stage. A failure counts for each server that the error names, unless the caller did not wait
// for the answer.
func (b *Breaker) After(c *take.Call) {
	if c.Err == nil {
		b.answered(c.Hits)
	} else {
		b.failed(c.Hits, c.Err, errors.Is(c.Err, context.Canceled) || errors.Is(c.Ctx.Err(), context.Canceled))
	}
}

// failed notes who did not answer, and who answered by an error. A caller who canceled did not wait for an answer. That
// this process was late says nothing about a server.
func (b *Breaker) failed(hits []limiter.Hit, err error, canceled bool) {
	now := int64(time.Since(b.start)) + 1 // never 0
	note := func(w *watched, why error) {
		switch {
		case w == nil:
		case b.o.Answered(why):
			w.isWell()
		case !canceled && !errors.Is(why, limiter.ErrLate):
			b.unanswered(w, now, why)
		}
	}
	named := false
	if b.o.Failures != nil {
		b.o.Failures(err, func(server, shard string, why error) {
			named = true
			if s := b.all[server]; s != nil && b.o.Answered(why) {
				s.whole.isWell()
			}
			note(b.blamed(hits, server, shard, b.o.Answered(why)), why)
		})
	}
	if !named && len(b.all) == 1 {
		note(&b.first.whole, err)
	}
}

// simple says that all hits are the same to the breaker: there is one server, and no silent shard.
func (b *Breaker) simple(hits []limiter.Hit) bool {
	return len(hits) == 0 || (len(b.all) == 1 && b.first.shards.Load() == nil)
}

// notAsked is why the hits are not decided; nil if they are to be.
func (b *Breaker) notAsked(hits []limiter.Hit) *error {
	if b.simple(hits) {
		return b.first.whole.why.Load()
	}
	for i := range hits {
		s := b.server(&hits[i])
		if why := s.whole.why.Load(); why != nil {
			return why
		}
		if w := s.silentShard(hits[i].Key); w != nil {
			if why := w.why.Load(); why != nil {
				return why
			}
		}
	}
	return nil
}

// answered notes that whoever has the hits is there.
func (b *Breaker) answered(hits []limiter.Hit) {
	if b.simple(hits) {
		b.first.whole.isWell()
		return
	}
	for i := range hits {
		s := b.server(&hits[i])
		s.whole.isWell()
		if w := s.silentShard(hits[i].Key); w != nil {
			w.isWell()
		}
	}
}

// blamed returns the server or shard that an error of the hits names; nil if that is not known. Shards that answered
// are looked up, but not watched.
func (b *Breaker) blamed(hits []limiter.Hit, name, shard string, answered bool) *watched {
	s := b.all[name]
	if s == nil {
		return nil
	}
	if shard == "" {
		if b.inOneShard(s, hits) {
			return &s.whole
		}
		return nil
	}
	for i := range hits {
		if h := &hits[i]; b.server(h) == s && s.Shard(h.Key) == shard {
			if answered {
				return s.silentShard(h.Key)
			}
			return s.watch(shard, h.Key)
		}
	}
	return nil // it is another's by now
}

// inOneShard says whether all hits on a server lie in one shard of it, as they do where there are no shards, and while
// nobody knows who has which slot.
func (b *Breaker) inOneShard(s *server, hits []limiter.Hit) bool {
	found, shard := false, ""
	for i := range hits {
		h := &hits[i]
		if b.server(h) != s {
			continue
		}
		if at := s.Shard(h.Key); !found {
			found, shard = true, at
		} else if at != shard {
			return false
		}
	}
	return true
}

// server returns the server that has the hit's counter; the first one if there is none of its name.
func (b *Breaker) server(h *limiter.Hit) *server {
	if len(b.all) > 1 {
		if s := b.all[h.StoreName()]; s != nil {
			return s
		}
	}
	return b.first
}

// unanswered has w asked no more if that is so for long enough.
func (b *Breaker) unanswered(w *watched, now int64, err error) {
	if w.silent.CompareAndSwap(0, now) || now-w.silent.Load() < int64(silence) {
		return
	}
	if !errors.Is(err, limiter.ErrUnavailable) {
		err = fmt.Errorf("%w: %w", limiter.ErrUnavailable, err)
	}
	err = fmt.Errorf("%w: the last call: %w", ErrNotAsked, err)
	if w.why.CompareAndSwap(nil, &err) {
		b.opened <- w // never full: Run takes it before w is asked again
	}
}

// isWell notes an answer.
func (w *watched) isWell() {
	if w.silent.Load() == 0 { // no core writes what the others read
		return
	}
	w.silent.Store(0)
	if w.why.Load() == nil { // else probes tell
		w.answered()
	}
}

// silentShard is the shard that has a key, if it was silent lately.
func (s *server) silentShard(key string) *watched {
	shards := s.shards.Load()
	if shards == nil {
		return nil
	}
	return (*shards)[s.Shard(key)]
}

// watch begins to watch the shard that has a key; nil if too many are watched.
func (s *server) watch(shard, key string) *watched {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.watchedShards()
	if w := before[shard]; w != nil || len(before) >= maxShards {
		return w
	}
	w := &watched{probe: func(ctx context.Context) error { return s.ProbeShard(ctx, key) }}
	w.answered = func() { s.forget(shard, w) }
	after := maps.Clone(before)
	if after == nil {
		after = make(map[string]*watched)
	}
	after[shard] = w
	s.shards.Store(&after)
	return w
}

// forget ends to watch a shard.
func (s *server) forget(shard string, w *watched) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.watchedShards()
	if before[shard] != w {
		return
	}
	if len(before) == 1 {
		s.shards.Store(nil)
		return
	}
	after := maps.Clone(before)
	delete(after, shard)
	s.shards.Store(&after)
}

func (s *server) watchedShards() map[string]*watched {
	if shards := s.shards.Load(); shards != nil {
		return *shards
	}
	return nil
}

// open is how much of the server is not asked.
func (s *server) open() (n int) {
	if s.whole.why.Load() != nil {
		n++
	}
	for _, w := range s.watchedShards() {
		if w.why.Load() != nil {
			n++
		}
	}
	return n
}

// Run probes what is not asked, each by itself, until ctx is done.
func (b *Breaker) Run(ctx context.Context) {
	var wait sync.WaitGroup
	defer wait.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case w := <-b.opened:
			wait.Go(func() { panics.Restart(ctx.Done(), "probe of Redis", func() { b.reopen(ctx, w) }) })
		}
	}
}

// reopen has w asked again once a probe is answered.
func (b *Breaker) reopen(ctx context.Context, w *watched) {
	for pause := firstPause; !b.answers(ctx, w); pause = min(2*pause, longestPause) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
	w.silent.Store(0)
	w.why.Store(nil)
	w.answered()
}

func (b *Breaker) answers(ctx context.Context, w *watched) bool {
	err := w.probe(ctx)
	return err == nil || b.o.Answered(err)
}
