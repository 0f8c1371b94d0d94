package redisstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// batch is the requests of one script call, with the buffers that its arguments are written to.
type batch struct {
	calls []*call
	hits  int // in all calls
	steps stepSet

	keys     []string
	requests []byte
	policies []string
	known    map[decider]int // 1 for policies[0]
	args     []any

	restarted []any // the keys of counters that the script restarted
}

func (b *batch) reset() {
	clear(b.calls)
	clear(b.keys)
	clear(b.known)
	clear(b.args)
	*b = batch{
		calls: b.calls[:0], keys: b.keys[:0], requests: b.requests[:0],
		policies: b.policies[:0], known: b.known, args: b.args[:0],
	}
}

// add puts the call into the batch.
func (b *batch) add(c *call) {
	b.calls = append(b.calls, c)
	b.hits += len(c.hits)
}

// decider is what the script needs to know of a hit's limit.
type decider struct {
	policy    *limiter.Policy
	redisCell bool
}

// batcher sends batches to a server, or to the servers of a cluster.
type batcher struct {
	client redis.UniversalClient
	keyspace
	channel string       // of refunds
	now     func() int64 // nil: the server's clock
	scripts scripts
	sent    *sent
	// noScripts is Options.NoScripts.
	noScripts bool
	wall      func() int64 // this process's clock, in microseconds since the Unix epoch
	ahead     atomic.Int64 // how far the server's clock is ahead of it, in microseconds
}

// send decides the batch and sets each call's out, or its err.
func (r *batcher) send(ctx context.Context, b *batch) {
	r.decide(ctx, b)
	if refused := r.takeRefused(b); refused != nil {
		r.decide(ctx, refused)
	}
}

func (r *batcher) decide(ctx context.Context, b *batch) {
	if r.noScripts {
		r.decidePlain(ctx, b)
		return
	}
	if r.slotted {
		r.decideSlots(ctx, b)
		return
	}
	r.write(b)
	cmd, err := r.run(ctx, b)
	if err == nil {
		err = b.read(cmd.Val())
		r.sent.restarts.note(b.restarted, time.Now())
	}
	if err != nil {
		b.fail(err)
	}
}

func (b *batch) fail(err error) {
	for _, c := range b.calls {
		c.err = err
	}
}

// run calls the script by its hash, and then with its text if the server does not know it.
func (r *batcher) run(ctx context.Context, b *batch) (*redis.Cmd, error) {
	sc := r.scripts.with(b.steps)
	cmd := b.command(ctx, "evalsha", sc.sha)
	r.sent.batch(len(b.calls))
	err := r.client.Process(ctx, noRetry{cmd})
	if redis.HasErrorPrefix(err, noScript) {
		r.sent.texts.Add(1)
		cmd = b.command(ctx, "eval", sc.text)
		err = r.client.Process(ctx, noRetry{cmd})
	}
	return cmd, err
}

// noScript begins a server's answer that it does not know a script, and so has not run it.
const noScript = "NOSCRIPT"

func (b *batch) command(ctx context.Context, name, script string) *redis.Cmd {
	b.args[0], b.args[1] = name, script
	return redis.NewCmd(ctx, b.args...)
}

// noRetry is a command that go-redis does not repeat when its answer is lost, since it may have been counted.
// A command that a server refused to run, with MOVED, ASK or READONLY, still goes to another server.
type noRetry struct{ *redis.Cmd }

func (noRetry) NoRetry() bool { return true }

// write writes the script's arguments, which lua/call.lua describes.
func (r *batcher) write(b *batch) {
	now := r.redisNow()
	channel := ""
	for _, c := range b.calls {
		b.requests = appendDouble(b.requests, int64(len(c.hits)))
		for i := range c.hits {
			h := &c.hits[i]
			b.keys = append(b.keys, r.key(h.Key))
			if h.N < 0 && !h.Policy.Algorithm().CountsInFlight() { // whose denials are not cached
				channel = r.channel
			}
			for _, v := range [...]int64{b.policy(h, now), c.mode(i), c.group(i), h.N} {
				b.requests = appendDouble(b.requests, v)
			}
		}
	}
	b.args = append(b.args, nil, nil, len(b.keys)) // nil: run says which script
	for i := range b.keys {
		b.args = append(b.args, &b.keys[i])
	}
	b.args = append(b.args, r.clock(now), channel, b.requests)
	for i := range b.policies {
		b.args = append(b.args, &b.policies[i])
	}
}

// policy returns the number of the hit's policy in the batch, which has each policy one time.
func (b *batch) policy(h *limiter.Hit, now int64) int64 {
	p, by := h.Policy, decider{h.Policy, usesRedisCell(h)}
	if i := b.known[by]; i != 0 {
		return int64(i)
	}
	step := stepOf(h)
	b.steps |= 1 << step
	var packed []byte
	numbers := slices.Concat(argsOf(h), p.Edges(now), []int64{int64(step), int64(p.ChargeDenied()), p.Largest()})
	for _, v := range numbers {
		packed = appendDouble(packed, v)
	}
	b.policies = append(b.policies, string(packed))
	if b.known == nil {
		b.known = make(map[decider]int)
	}
	b.known[by] = len(b.policies)
	return int64(len(b.policies))
}

// clock returns the time to decide at, or "" for the server's own.
func (r *batcher) clock(now int64) any {
	if r.now == nil {
		return ""
	}
	return strconv.FormatInt(now, 10)
}

const double = 8 // bytes

// appendDouble writes an integer below 2^53 as the script reads it.
func appendDouble(dst []byte, v int64) []byte {
	return binary.LittleEndian.AppendUint64(dst, math.Float64bits(float64(v)))
}

// answerFields is how many numbers the script returns for a hit.
const answerFields = 5

// read gives each call its decisions from the script's answer, or its error.
func (b *batch) read(answer any) error {
	var failures []any
	var at int64
	if list, isList := answer.([]any); isList && len(list) == 4 {
		answer = list[0]
		failures, _ = list[1].([]any) // what is no list is none
		b.restarted, _ = list[2].([]any)
		at, _ = list[3].(int64)
	}
	text, ok := answer.(string)
	if want := b.hits * answerFields * double; !ok || len(text) != want {
		return fmt.Errorf("the script answered %T of %d bytes, want a string of %d", answer, len(text), want)
	}
	for _, c := range b.calls {
		for range c.hits {
			d, err := readDecision(text[:answerFields*double])
			if err != nil {
				c.err = requestError(err.Error()) // of this request alone: the others were decided, and charged
			}
			c.out = append(c.out, d)
			text = text[answerFields*double:]
		}
		c.at = at
	}
	for ; len(failures) >= 2; failures = failures[2:] {
		i, isNumber := failures[0].(int64)
		why, isText := failures[1].(string)
		if !isNumber || !isText || i < 1 || i > int64(len(b.calls)) {
			return fmt.Errorf("the script answered that request %v failed with %v", failures[0], failures[1])
		}
		b.calls[i-1].err = requestError(why)
	}
	return nil
}

func readDecision(text string) (limiter.Decision, error) {
	var v [answerFields]int64
	for i := range v {
		f := math.Float64frombits(binary.LittleEndian.Uint64([]byte(text[i*double : (i+1)*double])))
		if v[i] = int64(f); float64(v[i]) != f || v[i] < -1 {
			return limiter.Decision{}, fmt.Errorf("the script answered %v where a whole number belongs", f)
		}
	}
	micros := func(us int64) time.Duration {
		if us > int64(limiter.Never/time.Microsecond) {
			return limiter.Never
		}
		return time.Duration(us) * time.Microsecond
	}
	d := limiter.Decision{
		Allowed: v[0] == 1, Remaining: v[1], RetryAfter: micros(v[2]), ResetAfter: micros(v[3]), Wait: micros(v[4]),
	}
	if v[2] < 0 {
		d.RetryAfter = limiter.Never
	}
	return d, nil
}
