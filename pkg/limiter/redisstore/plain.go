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

// fitForNoScripts returns an error that wraps limiter.ErrInvalid for hits that need scripts in a store without them.
func (s *Store) fitForNoScripts(hits []limiter.Hit) error {
	if !s.noScripts {
		return nil
	}
	for i := range hits {
		if p := hits[i].Policy; !CountsWithoutScripts(p) || usesRedisCell(&hits[i]) {
			return fmt.Errorf("%w: hits[%d] is a limit of algorithm %s: a store without scripts decides fixed windows "+
				"with AlignEpoch or AlignCalendar and ChargeFull; use one of these, or a store with scripts",
				limiter.ErrInvalid, i, p.Algorithm())
		}
	}
	return nil
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
	if !s.noScripts || !CountsWithoutScripts(h.Policy) {
		return h.Key
	}
	now := s.now
	if now == nil {
		now = s.wall
	}
	begin, end := windowAt(h.Policy, now())
	return string(appendWindow([]byte(h.Key), begin, end))
}

// WindowKey is Store.WindowKey of the store that the hit's route names.
func (g *Group) WindowKey(h *limiter.Hit) string {
	if s := g.of(storeName(h)); s != nil {
		return s.WindowKey(h)
	}
	return h.Key
}

// plainHit is a hit on its way through a store without scripts.
type plainHit struct {
	*limiter.Hit

	name       string // of its key
	begin, end int64  // of its window

	asked   *redis.Cmd // INCRBY or GET; nil where nothing is asked
	expires *redis.Cmd // PEXPIRE; nil with GET
	added   int64      // by INCRBY
}

// plainCall is a request on its way through a store without scripts.
type plainCall struct {
	*call

	hits      []plainHit
	found     map[string]*redis.Cmd // GET of the keys that the request gives back to; nil: it gives nothing back
	givesBack bool
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
	first, second, third := r.client.Pipeline(), r.client.Pipeline(), r.client.Pipeline()
	for i, c := range b.calls {
		p := &calls[i]
		r.name(p, c, now)
		if p.givesBack {
			p.look(ctx, first)
		} else {
			p.ask(ctx, first, now)
		}
	}
	exec(ctx, first)
	for i := range calls {
		if p := &calls[i]; p.givesBack && p.failed() == nil {
			p.ask(ctx, second, now)
		}
	}
	exec(ctx, second)
	for i := range calls {
		p := &calls[i]
		if p.err = p.failed(); p.err == nil {
			p.answer(ctx, third, now)
		}
	}
	exec(ctx, third)
}

// exec sends the commands of a pipeline, if there are any. Each has its own error afterwards.
func exec(ctx context.Context, p redis.Pipeliner) {
	if p.Len() > 0 {
		_, _ = p.Exec(ctx) // it is that of the first command that has one
	}
}

// name finds the keys of a request's hits.
func (r *batcher) name(p *plainCall, c *call, now int64) {
	p.call, p.hits = c, make([]plainHit, len(c.hits))
	var text []byte
	for i := range c.hits {
		h := &p.hits[i]
		h.Hit = &c.hits[i]
		h.begin, h.end = windowAt(h.Policy, now)
		text = appendWindow(append(append(text[:0], r.prefix...), h.Key...), h.begin, h.end)
		h.name = string(text)
		p.givesBack = p.givesBack || h.N < 0
	}
}

// look adds the commands that read what a request gives back to.
func (p *plainCall) look(ctx context.Context, to redis.Pipeliner) {
	p.found = make(map[string]*redis.Cmd)
	for i := range p.hits {
		if h := &p.hits[i]; h.N < 0 && p.found[h.name] == nil {
			p.found[h.name] = send(ctx, to, "get", h.name)
		}
	}
}

// ask adds the commands that charge a request's hits, in their order.
func (p *plainCall) ask(ctx context.Context, to redis.Pipeliner, now int64) {
	var left map[string]int64 // what the counters that the request gives back to hold after its hits so far
	if p.givesBack {
		left = make(map[string]int64, len(p.found))
		for name, cmd := range p.found {
			left[name], _ = counted(cmd)
		}
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
			h.asked = send(ctx, to, "get", h.name)
			continue
		}
		if left != nil {
			left[h.name] += h.added
		}
		h.asked = send(ctx, to, "incrby", h.name, h.added)
		h.expires = send(ctx, to, "pexpire", h.name, h.livesFor(now).Milliseconds()+1)
	}
}

// livesFor is how long the counter matters: until its window ends, and a little longer for processes whose clock is
// behind.
func (h *plainHit) livesFor(now int64) time.Duration {
	micros := func(us int64) time.Duration { return time.Duration(us) * time.Microsecond }
	return micros(h.end-now) + min(maxLinger, micros(h.end-h.begin))
}

// send adds a command that is sent once, whatever the client's retries: it may have been counted.
func send(ctx context.Context, to redis.Pipeliner, args ...any) *redis.Cmd {
	cmd := redis.NewCmd(ctx, args...)
	_ = to.Process(ctx, noRetry{cmd}) // it is queued, which cannot fail
	return cmd
}

// failed returns why the request is not decided, so far.
func (p *plainCall) failed() error {
	for _, cmd := range p.found {
		if _, err := counted(cmd); err != nil {
			return err
		}
	}
	for i := range p.hits {
		h := &p.hits[i]
		if h.asked == nil {
			continue
		}
		if _, err := counted(h.asked); err != nil {
			return err
		}
		if h.expires != nil && h.expires.Err() != nil {
			return h.expires.Err()
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
			send(ctx, correct, "incrby", h.name, min(-h.added, -after))
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

// pingPlain counts a hit, and reads the counter.
func (s *Store) pingPlain(ctx context.Context) error {
	p, err := limiter.NewPolicy(limiter.Params{Algorithm: limiter.FixedWindow, Limit: 1000, Window: time.Second})
	if err != nil {
		return err
	}
	r := &batcher{client: s.client, keyspace: s.keyspace, now: s.now, wall: s.wall, sent: new(sent), noScripts: true}
	b := new(batch)
	c := &call{hits: []limiter.Hit{{Key: probeKey, Policy: p, N: 1}, {Key: probeKey, Policy: p, Look: true}}}
	b.add(c)
	r.send(ctx, b)
	return c.err
}
