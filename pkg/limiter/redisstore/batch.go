package redisstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// batch holds the requests of one script call, and the buffers for the call's arguments.
type batch struct {
	calls []*call
	hits  int // number of hits in all calls
	steps stepSet

	counters index[string]
	keyText  []byte         // Redis keys of the counters, concatenated
	keyEnds  []int          // end of each key in keyText
	keys     []string       // Redis keys of the counters, set when keyText is complete
	numbers  []byte         // number of each hit's counter, from 1
	requests []byte         // index in ARGV of each request's plan
	texts    []string       // plans and policies
	plan     []byte         // plan of the request that write is at
	plans    map[string]int // index in ARGV of each plan
	deciders index[decider]
	policies []int // index in ARGV of each decider's policy
	args     []any

	script *script
	cmd    *redis.Cmd // the script call

	sentAt time.Time // time at which the worker took the batch

	countsInFlight bool // a hit of the batch counts a request as in flight
	isStamped      bool // a policy of the batch has a Reserve, so the answer ends with the time of the decisions
	isPatient      bool // the worker waits for a late reply: see LateAnswer
	isDetached     bool // the worker is detached, because no request waits for it; guarded by queue.mu
}

func (b *batch) reset() {
	clear(b.calls)
	clear(b.keys)
	clear(b.texts)
	clear(b.plans)
	clear(b.args)
	b.counters.reset()
	b.deciders.reset()
	*b = batch{
		calls: b.calls[:0], counters: b.counters, keyText: b.keyText[:0], keyEnds: b.keyEnds[:0], keys: b.keys[:0],
		numbers: b.numbers[:0], requests: b.requests[:0], texts: b.texts[:0], plan: b.plan[:0], plans: b.plans,
		deciders: b.deciders, policies: b.policies[:0], args: b.args[:0],
	}
}

// add puts the call into the batch.
func (b *batch) add(c *call) {
	b.calls = append(b.calls, c)
	b.hits += len(c.hits)
	for i := range c.hits {
		b.countsInFlight = b.countsInFlight || limit.CountsInFlight(&c.hits[i])
	}
}

// batcher sends batches to a server, or to the servers of a cluster.
type batcher struct {
	client redis.UniversalClient
	keyspace
	channel string // channel of refunds; "" behind a proxy
	// now returns the time around which calendar windows are sent (see step.Dated), in microseconds since the Unix epoch.
	// With sendsNow it is Options.Now, which is also the time of the decisions. Else it is this process's clock.
	now      func() int64
	sendsNow bool
	scripts  scripts
	sent     *sent
	isSpread bool // Store.isSpread
}

// send decides the batch and sets out or err of each call.
func (r *batcher) send(ctx context.Context, b *batch) {
	if r.isSpread {
		r.run(ctx, byScope(b.calls)...)
	} else {
		r.run(ctx, b)
	}
}

// run decides each batch with one script call, all in one pipeline. If a slot in migration refuses a batch, run sends
// its calls again one by one.
func (r *batcher) run(ctx context.Context, batches ...*batch) {
	for _, b := range batches {
		r.write(b)
		b.script = r.scripts.with(b.steps)
		b.command(ctx, "evalsha", b.script.sha)
		r.sent.count(func(s *Stats) { s.Calls, s.Requests = s.Calls+1, s.Requests+uint64(len(b.calls)) })
	}
	r.process(ctx, batches)
	var unknown []*batch
	for _, b := range batches {
		if redis.HasErrorPrefix(b.cmd.Err(), "NOSCRIPT") { // the server does not know the script, so has not run it
			b.command(ctx, "eval", b.script.text)
			r.sent.count(func(s *Stats) { s.Texts++ })
			unknown = append(unknown, b)
		}
	}
	r.process(ctx, unknown)
	for _, b := range batches {
		switch err := b.cmd.Err(); {
		case err == nil:
			if err = r.read(b); err != nil {
				b.fail(err)
			}
		case isMoving(err) && len(b.calls) > 1:
			for _, c := range b.calls {
				alone := new(batch)
				alone.add(c)
				r.run(ctx, alone)
			}
		default:
			if c, ok := r.client.(*redis.ClusterClient); ok && !isMoving(err) {
				c.ReloadState(ctx) // in case of a failover
			}
			b.fail(err)
		}
	}
}

func (b *batch) fail(err error) {
	for _, c := range b.calls {
		c.err = err
	}
}

func (b *batch) command(ctx context.Context, name, script string) {
	b.args[0], b.args[1] = name, script
	b.cmd = redis.NewCmd(ctx, b.args...)
}

// process sends the commands of the batches. Each command then holds its own error.
func (r *batcher) process(ctx context.Context, batches []*batch) {
	switch len(batches) {
	case 0:
	case 1:
		_ = r.client.Process(ctx, noRetry{batches[0].cmd})
	default:
		pipe := r.client.Pipeline()
		for _, b := range batches {
			_ = pipe.Process(ctx, noRetry{b.cmd})
		}
		_, _ = pipe.Exec(ctx)
	}
}

// noRetry is a command that go-redis does not repeat without a reply, because the server may have run it. If a server
// refuses the command with MOVED, ASK or READONLY, go-redis still sends it to another server.
type noRetry struct{ *redis.Cmd }

func (noRetry) NoRetry() bool { return true }

// write writes the script's arguments; see lua/call.lua.
func (r *batcher) write(b *batch) {
	now := r.now()
	channel := ""
	for _, c := range b.calls {
		b.plan = b.plan[:0]
		for i := range c.hits {
			h := &c.hits[i]
			b.numbers = appendDouble(b.numbers, b.number(&r.keyspace, h.Key))
			if h.N < 0 && !h.Policy.Algorithm().CountsInFlight() { // the refund may end a cached denial
				channel = r.channel
			}
			for _, v := range [...]int64{b.policy(h, now), c.mode(i), c.group(i), h.N} {
				b.plan = appendDouble(b.plan, v)
			}
		}
		b.requests = appendDouble(b.requests, b.planOf())
	}
	keys, from := string(b.keyText), 0
	for _, end := range b.keyEnds {
		b.keys = append(b.keys, keys[from:end])
		from = end
	}
	if len(b.keys) == b.hits {
		b.numbers = b.numbers[:0]
	}
	b.args = append(b.args, nil, nil, len(b.keys)) // command sets the first two
	for i := range b.keys {
		b.args = append(b.args, &b.keys[i])
	}
	clock := "" // means the clock of Redis
	if r.sendsNow {
		clock = strconv.FormatInt(now, 10)
	}
	b.args = append(b.args, clock, channel, b.requests, b.numbers)
	for i := range b.texts {
		b.args = append(b.args, &b.texts[i])
	}
}

// number returns the number of the counter, from 1. It adds the key of a new counter to the batch.
func (b *batch) number(all *keyspace, counter string) int64 {
	i, isNew := b.counters.number(counter)
	if isNew {
		b.keyText = all.appendKey(b.keyText, counter)
		b.keyEnds = append(b.keyEnds, len(b.keyText))
	}
	return int64(i + 1)
}

// argumentsBefore is the number of arguments before the plans and policies.
const argumentsBefore = 4

// addText adds a plan or a policy to the batch, and returns its index in ARGV.
func (b *batch) addText(text string) int {
	b.texts = append(b.texts, text)
	return argumentsBefore + len(b.texts)
}

// planOf returns the index in ARGV of b.plan. It adds each different plan once.
func (b *batch) planOf() int64 {
	i := b.plans[string(b.plan)]
	if i == 0 {
		if b.plans == nil {
			b.plans = make(map[string]int)
		}
		text := string(b.plan)
		i = b.addText(text)
		b.plans[text] = i
	}
	return int64(i)
}

// policy returns the index in ARGV of the hit's policy. It adds each different policy once.
func (b *batch) policy(h *limiter.Hit, now int64) int64 {
	by := decider{h.Policy, limit.UsesRedisCell(h)}
	i, isNew := b.deciders.number(by)
	if isNew {
		p := packed(by, h, now)
		b.steps |= 1 << p.step
		b.isStamped = b.isStamped || by.policy.Core().Reserve > 0
		b.policies = append(b.policies, b.addText(p.text))
	}
	return int64(b.policies[i])
}

const double = 8 // bytes

// appendDouble appends an integer below 2^53 as the script reads it: a little-endian double.
func appendDouble(dst []byte, v int64) []byte {
	return binary.LittleEndian.AppendUint64(dst, math.Float64bits(float64(v)))
}

// readDouble reverses appendDouble.
func readDouble(text string) int64 {
	return int64(math.Float64frombits(binary.LittleEndian.Uint64([]byte(text))))
}

// The first number of the answer to a hit that is denied or delayed: see lua/call.lua.
const (
	answerDenied   = -1
	answerAdmitted = -2
)

// read sets the decisions or the error of each call from the script's answer, and updates Stats.
func (r *batcher) read(b *batch) error {
	answer := b.cmd.Val()
	var failures []any
	var at int64
	if list, isList := answer.([]any); isList && len(list) == 5 {
		answer = list[0]
		failures, _ = list[1].([]any) // nil if it is not a list
		at, _ = list[2].(int64)
		restarted, _ := list[3].(int64)
		cut, _ := list[4].(int64)
		r.sent.count(func(s *Stats) {
			s.Restarted += uint64(restarted) //nolint:gosec // a count
			s.Cut += uint64(cut)             //nolint:gosec // a count
		})
	}
	text, ok := answer.(string)
	if !ok {
		return fmt.Errorf("the script returned %T, want a string", answer)
	}
	rest := text
	if end := len(text) - double; b.isStamped && end >= 0 {
		at, rest = readDouble(text[end:]), text[:end]
	}
	for _, c := range b.calls {
		for i := range c.hits {
			d, n := readDecision(rest)
			if n > len(rest) {
				return fmt.Errorf("the script returned %d bytes for %d hits, which is too short", len(text), b.hits)
			}
			if b.countsInFlight && limit.CountsInFlight(&c.hits[i]) {
				d.TakenAt, d.Wait = d.Wait.Microseconds(), 0
			}
			c.out = append(c.out, d)
			rest = rest[n:]
		}
		if c.at = at; b.isStamped {
			isCharged := c.modes != nil || c.byItself || limiter.Admitted(c.hits, c.out)
			limit.Stamp(c.hits, c.out, func(*limiter.Policy) int64 { return at }, isCharged)
		}
	}
	if rest != "" {
		return fmt.Errorf("the script returned %d bytes for %d hits, %d too many", len(text), b.hits, len(rest))
	}
	for ; len(failures) >= 2; failures = failures[2:] {
		i, _ := failures[0].(int64)
		why, _ := failures[1].(string)
		b.calls[i-1].err = requestError(why)
	}
	return nil
}

// readDecision reads the decision at the start of text. n is its length, which is above len(text) if text is too short.
func readDecision(text string) (d limiter.Decision, n int) {
	number := func(i int) int64 {
		if n = (i + 1) * double; n > len(text) {
			return 0
		}
		return readDouble(text[i*double : n])
	}
	micros := func(us int64) time.Duration {
		if us > int64(limiter.Never/time.Microsecond) {
			return limiter.Never
		}
		return time.Duration(us) * time.Microsecond
	}
	switch first := number(0); first {
	case answerDenied, answerAdmitted:
		d.Allowed, d.Remaining = first == answerAdmitted, number(1)
		retry := number(2)
		d.RetryAfter, d.ResetAfter, d.Wait = micros(retry), micros(number(3)), micros(number(4))
		if retry < 0 {
			d.RetryAfter = limiter.Never
		}
	default:
		d = limiter.Decision{Allowed: true, Remaining: first, ResetAfter: micros(number(1))}
	}
	return d, n
}

// few is the maximum number of values that an index searches without a map, because that is quicker.
const few = 8

// index numbers values from 0, in the order of their first appearance.
type index[K comparable] struct {
	all []K
	of  map[K]int // number of each value; empty while there are at most few values
}

// number returns a value's number. isNew reports that the value is new to the index.
func (x *index[K]) number(value K) (i int, isNew bool) {
	if len(x.all) <= few {
		if i = slices.Index(x.all, value); i >= 0 {
			return i, false
		}
	} else if i, known := x.of[value]; known {
		return i, false
	}
	x.all = append(x.all, value)
	if len(x.all) > few {
		if x.of == nil {
			x.of = make(map[K]int)
		}
		for i := len(x.of); i < len(x.all); i++ {
			x.of[x.all[i]] = i
		}
	}
	return len(x.all) - 1, true
}

// reset removes all values, and keeps the memory for new ones.
func (x *index[K]) reset() {
	clear(x.all)
	clear(x.of)
	x.all = x.all[:0]
}
