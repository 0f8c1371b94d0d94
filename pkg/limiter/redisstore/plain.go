package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// A store without scripts (Options.NoScripts) counts fixed windows by INCRBY, PEXPIRE and GET alone, each command with
// one key, so that proxies such as twemproxy and Envoy's redis_proxy can send it to the server that has the key. Each
// window has a key of its own, since INCRBY keeps nothing but a number. INCRBY answers what the counter holds, and that
// decides: of all hits that are admitted in a window, the last one found no more than the limit. docs/adr/0071 says
// what is weaker than with scripts.

const (
	// maxLinger is the most that a key lives longer than its window: a process whose clock is behind still counts there.
	maxLinger = 10 * time.Second
	// mostCounted is where a counter ends for limiter.Policy.Step, which adds a cost to it below 2^53.
	mostCounted = 1 << 52
)

// windowMark begins the part of a key that says which window it counts.
const windowMark = "|@"

// CountsWithoutScripts reports whether a store with Options.NoScripts can decide the limit: a FixedWindow that begins
// at a time that the clock shows, and that charges denied requests in full.
func CountsWithoutScripts(p *limiter.Policy) bool {
	return p.Algorithm() == limiter.FixedWindow && p.OnWallClock() && p.ChargeDenied() == limiter.ChargeFull
}

// windowAt returns where the window of a limit begins and ends that contains now, all in microseconds since the Unix
// epoch.
func windowAt(p *limiter.Policy, now int64) (begin, end int64) {
	if edges := p.Edges(now); edges != nil {
		return edges[1], edges[2]
	}
	length := p.Window().Microseconds()
	begin = now - now%length
	return begin, begin + length
}

// appendWindow appends what names a window in a key: |@BEGIN+LENGTH, in seconds.
func appendWindow(dst []byte, begin, end int64) []byte {
	dst = appendSeconds(append(dst, windowMark...), begin)
	return appendSeconds(append(dst, '+'), end-begin)
}

// appendSeconds appends microseconds as seconds, with a fraction only where there is one.
func appendSeconds(dst []byte, micros int64) []byte {
	const second = 1_000_000
	dst = strconv.AppendInt(dst, micros/second, 10)
	rest := micros % second
	if rest == 0 {
		return dst
	}
	digits := strconv.FormatInt(second+rest, 10)[1:]
	return append(append(dst, '.'), strings.TrimRight(digits, "0")...)
}

// WindowKey returns what Reset calls the counter of a hit: its key, and in a store without scripts also its current
// window, as in "fixed_window|shop|client=ann|@1785024000+60".
func (s *Store) WindowKey(h *limiter.Hit) string {
	if !s.o.NoScripts || !CountsWithoutScripts(h.Policy) {
		return h.Key
	}
	now := s.o.Now
	if now == nil {
		now = s.wall
	}
	begin, end := windowAt(h.Policy, now())
	return string(appendWindow([]byte(h.Key), begin, end))
}

// WindowKey is Store.WindowKey of the store that the hit's route names.
func (g *Group) WindowKey(h *limiter.Hit) string {
	if s := g.all[storeName(h)]; s != nil {
		return s.WindowKey(h)
	}
	return h.Key
}

// plainHit is a hit on its way through a store without scripts.
type plainHit struct {
	*limiter.Hit

	name       string // of its key
	begin, end int64  // of its window

	asked *redis.Cmd // INCRBY or GET; nil where nothing is asked
	added int64      // by INCRBY
}

// plainCall is a request on its way through a store without scripts.
type plainCall struct {
	*call

	hits  []plainHit
	found map[string]*redis.Cmd // GET of the keys that the request gives back to
	sent  []*redis.Cmd
}

// decidePlain decides a batch without scripts, each hit by itself: in one round trip, unless a request gives hits back.
// Then it reads first what there is to give back, so that no counter falls below 0.
func (r *batcher) decidePlain(ctx context.Context, b *batch) {
	r.sent.batch(len(b.calls))
	now := r.wall()
	if r.now != nil {
		now = r.now()
	}
	calls := make([]plainCall, len(b.calls))
	look, charge, correct := r.client.Pipeline(), r.client.Pipeline(), r.client.Pipeline()
	for i, c := range b.calls {
		calls[i] = plainCall{call: c, hits: make([]plainHit, len(c.hits))}
		calls[i].look(ctx, look, r.prefix, now)
	}
	exec(ctx, look)
	for i := range calls {
		if p := &calls[i]; p.failed() == nil {
			p.charge(ctx, charge, now)
		}
	}
	exec(ctx, charge)
	for i := range calls {
		p := &calls[i]
		if p.err = p.failed(); p.err == nil {
			p.answer(ctx, correct, now)
		}
	}
	exec(ctx, correct)
}

// exec sends the commands of a pipeline, if there are any. Each has its own error afterwards.
func exec(ctx context.Context, p redis.Pipeliner) {
	if p.Len() > 0 {
		_, _ = p.Exec(ctx) // it is that of the first command that has one
	}
}

// look finds the keys of the request's hits, and adds the commands that read those that it gives back to.
func (p *plainCall) look(ctx context.Context, to redis.Pipeliner, prefix string, now int64) {
	var text []byte
	for i := range p.hits {
		h := &p.hits[i]
		h.Hit = &p.call.hits[i]
		h.begin, h.end = windowAt(h.Policy, now)
		text = appendWindow(append(append(text[:0], prefix...), h.Key...), h.begin, h.end)
		h.name = string(text)
		if h.N < 0 && p.found[h.name] == nil {
			if p.found == nil {
				p.found = make(map[string]*redis.Cmd)
			}
			p.found[h.name] = p.send(ctx, to, "get", h.name)
		}
	}
}

// charge adds the commands that charge the request's hits, in their order.
func (p *plainCall) charge(ctx context.Context, to redis.Pipeliner, now int64) {
	left := make(map[string]int64, len(p.found)) // in the counters that it gives back to, after its hits so far
	for name, cmd := range p.found {
		left[name], _ = counted(cmd)
	}
	for i := range p.hits {
		h := &p.hits[i]
		switch {
		case h.Policy.Limit() == 0 && !h.Policy.LooksAtLimit(): // it denies everything, and counts nothing
			continue
		case h.N < 0:
			h.added = -min(-h.N, max(0, left[h.name]))
		default:
			h.added = h.N
		}
		if h.added == 0 {
			h.asked = p.send(ctx, to, "get", h.name)
			continue
		}
		if p.found != nil {
			left[h.name] += h.added
		}
		h.asked = p.send(ctx, to, "incrby", h.name, h.added)
		p.send(ctx, to, "pexpire", h.name, h.livesFor(now).Milliseconds()+1)
	}
}

// livesFor is how long the counter matters: until its window ends, and a little longer for processes whose clock is
// behind.
func (h *plainHit) livesFor(now int64) time.Duration {
	micros := func(us int64) time.Duration { return time.Duration(us) * time.Microsecond }
	return micros(h.end-now) + min(maxLinger, micros(h.end-h.begin))
}

// send adds a command that is sent once, whatever the client's retries: it may have been counted.
func (p *plainCall) send(ctx context.Context, to redis.Pipeliner, args ...any) *redis.Cmd {
	cmd := redis.NewCmd(ctx, args...)
	_ = to.Process(ctx, noRetry{cmd}) // it is queued, which cannot fail
	p.sent = append(p.sent, cmd)
	return cmd
}

// failed returns why the request is not decided, so far.
func (p *plainCall) failed() error {
	for _, cmd := range p.sent {
		if _, err := counted(cmd); err != nil {
			return err
		}
	}
	return nil
}

// answer decides the request by what the counters hold. Where more was given back than there was, since others gave
// back at the same time, it adds the command that sets that right.
func (p *plainCall) answer(ctx context.Context, correct redis.Pipeliner, now int64) {
	for i := range p.hits {
		h, after := &p.hits[i], int64(0)
		if h.asked != nil {
			after, _ = counted(h.asked) // failed has seen its error
		}
		if h.added < 0 && after < 0 {
			p.send(ctx, correct, "incrby", h.name, min(-h.added, -after))
		}
		before := max(0, min(after, mostCounted)-h.added)
		_, d := h.Policy.Step(limiter.State{A: h.begin, B: before}, now, h.N)
		p.out = append(p.out, d)
	}
}

// counted is what a counter holds by the answer to GET or INCRBY.
func counted(cmd *redis.Cmd) (n int64, err error) {
	switch v, err := cmd.Result(); {
	case errors.Is(err, redis.Nil):
		return 0, nil
	case err != nil && strings.Contains(err.Error(), "increment or decrement would overflow"):
		return math.MaxInt64, nil // more than any limit
	case err != nil:
		return 0, err
	default:
		if n, ok := v.(int64); ok {
			return n, nil
		}
		if text, ok := v.(string); ok {
			if n, err := strconv.ParseInt(text, 10, 64); err == nil {
				return n, nil
			}
		}
		return 0, requestError(fmt.Sprintf("%v answered %.80q where a whole number belongs: does something else write "+
			"below the key prefix?", cmd.Args()[:2], fmt.Sprint(v)))
	}
}

// resetPlain deletes a counter by a name of WindowKey, with the rights that counting needs.
func (s *Store) resetPlain(ctx context.Context, name string) (existed bool, err error) {
	if !namesWindow(name) {
		return false, s.unavailable(requestError(fmt.Sprintf("without scripts each window has a counter of its own: "+
			"name the one to reset, such as %.300q", name+windowMark+"1785024000+60")))
	}
	existed, err = s.client.PExpire(ctx, s.prefix+name, 0).Result()
	return existed, s.unavailable(err)
}

// namesWindow reports whether a counter's key says which window it counts.
func namesWindow(key string) bool { return strings.Contains(key, windowMark) }
