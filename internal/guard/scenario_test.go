package guard_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/guard"
	"github.com/weir-ratelimit/weir/internal/panics"
	"github.com/weir-ratelimit/weir/internal/sleep"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
)

// TestScenarios plays testdata/scenarios/*.txt in virtual time. The README.md there says what a file contains.
func TestScenarios(t *testing.T) {
	casetest.Scenarios(t, func(t *testing.T, s *casetest.Scenario) {
		synctest.Test(t, func(t *testing.T) {
			p := &player{T: t}
			defer panics.Handle(func(where string, _ any, _ []byte) { p.say("a panic in the " + where) })()
			defer p.end()
			s.Play(t, func(c casetest.Command) string {
				answer := p.do(c)
				rest()
				return answer + p.said()
			}, "rules ...", "start ...", "wait TIME", "redis STATE ...", "reset KEY", "request KEY ...", "print ...",
				"close ...")
		})
	})
}

// rest waits until the background calls of leases are done. They take a nanosecond longer than requests, so that the
// order of calls is the same in every run.
func rest() {
	time.Sleep(time.Microsecond)
	synctest.Wait()
}

// player plays processes with leases in front of one Redis.
type player struct {
	*testing.T

	set       *descriptors.Set
	store     *memstore.Store
	processes map[string]*process
	closed    bool // a command has closed leases, and has shown the error

	mu    sync.Mutex
	redis redis
	calls int
	news  []string // since the last command
}

type process struct {
	guard.LeasesStore

	set *descriptors.Set
}

// redis is the state of Redis.
type redis struct {
	takes, late time.Duration // latency before it decides, and of its response
	hangs       time.Time     // until when it does not respond
	fails       error
	panics      bool
}

func (p *player) do(c casetest.Command) (answer string) {
	if n := len(c.Args) - 1; n >= 0 && c.Args[n] == "&" {
		c.Args = c.Args[:n]
		go func() {
			answer := strings.ReplaceAll(strings.TrimSpace(p.do(c)), "\n", ", ")
			p.say(strings.Join(append([]string{c.Name}, c.Args...), " ") + ": " + answer)
		}()
		return ""
	}
	by := p.processes[""]
	if n := len(c.Args) - 2; n >= 0 && c.Args[n] == "at" {
		by, c.Args = p.processes[c.Args[n+1]], c.Args[:n]
	}
	if by == nil && slices.Contains([]string{"reset", "request", "print", "close"}, c.Name) {
		c.Fatalf("no process of that name was started; write the name at the end: at NAME")
	}
	switch c.Name {
	case "rules":
		p.set = casetest.Compile(p, c.Text)
		for name, process := range p.processes {
			if len(c.Args) == 0 || c.Args[0] == name {
				process.set = p.set
			}
		}
		return c.Text
	case "start":
		p.start(c.Args)
	case "wait":
		time.Sleep(casetest.Parsed(c, time.ParseDuration, c.Args[0]))
	case "redis":
		p.change(c)
	case "reset":
		for _, h := range p.hits(c, by, c.Args) {
			p.store.Reset(h.Key)
			by.Reset(h.Key)
		}
	case "request":
		return p.request(c, by)
	case "print":
		return p.print(c, by)
	case "close":
		p.closed = true
		start, result := time.Now(), "closed"
		if err := by.Close(); err != nil {
			result = "failed: " + err.Error()
		}
		return fmt.Sprintf("%s, after %s\n", result, time.Since(start).Round(time.Millisecond))
	}
	return ""
}

func (p *player) say(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.news = append(p.news, line+"\n")
}

func (p *player) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	said := strings.Join(p.news, "")
	p.news = nil
	return said
}

// start starts processes in front of a Redis that is empty.
func (p *player) start(names []string) {
	p.end()
	var err error
	if p.store, err = memstore.New(memstore.Options{}); err != nil {
		p.Fatal(err)
	}
	if len(names) == 0 {
		names = []string{""}
	}
	p.processes, p.redis, p.calls = map[string]*process{}, redis{}, 0
	p.closed = false
	for _, name := range names {
		p.processes[name] = &process{guard.Lease(p), p.set}
	}
	time.Sleep(500 * time.Nanosecond) // so that no command comes when leases are renewed, at whole milliseconds
}

// end ends all processes.
func (p *player) end() {
	p.setRedis(redis{})
	for name, process := range p.processes {
		if err := process.Close(); err != nil && !p.closed {
			p.Errorf("Close of process %q: %v", name, err)
		}
	}
	if p.store != nil {
		_ = p.store.Close()
	}
}

func (p *player) setRedis(r redis) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.redis = r
}

// change changes the state of Redis.
func (p *player) change(c casetest.Command) {
	var r redis
	length := time.Hour
	if len(c.Args) > 1 {
		length = casetest.Parsed(c, time.ParseDuration, c.Args[1])
	} else if c.Args[0] == "takes" || c.Args[0] == "late" {
		c.Fatalf("redis %s needs a time", c.Args[0])
	}
	switch c.Args[0] {
	case "works":
	case "takes":
		r.takes = length
	case "late":
		r.late = length
	case "hangs":
		r.hangs = time.Now().Add(length)
	case "down":
		r.fails = fmt.Errorf("%w: down", limiter.ErrUnavailable)
	case "uncalled":
		r.fails = fmt.Errorf("%w: %w", limiter.ErrUnavailable, guard.ErrBreakerOpen)
	case "panics":
		r.panics = true
	case "restarts":
		p.store.Clear()
	default:
		c.Fatalf("Redis cannot be %q: works, takes, late, hangs, down, uncalled, panics or restarts", c.Args[0])
	}
	p.setRedis(r)
}

// calledKey is the key of a *bool in the context of a request. A call to Redis sets it.
type calledKey struct{}

// Take is Redis.
func (p *player) Take(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	p.mu.Lock()
	r := p.redis
	p.calls++
	p.mu.Unlock()
	if called, ok := ctx.Value(calledKey{}).(*bool); ok {
		*called = true
	}
	wait := max(r.takes, time.Until(r.hangs))
	if guard.IsBackground(ctx) {
		wait++
	}
	if err := sleep.For(ctx, wait); err != nil {
		return fmt.Errorf("%w: %w", limiter.ErrUnavailable, err)
	}
	if r.panics {
		panic("boom")
	}
	if r.fails != nil {
		return r.fails
	}
	err := p.store.Take(ctx, hits, out)
	time.Sleep(r.late)
	return err
}

// hits returns the hits of descriptors key=value,key=value*COST, each of which has one limit. The word alone sets
// ByItself.
func (p *player) hits(c casetest.Command, by *process, words []string) []limiter.Hit {
	var asked descriptors.Asked
	var costs []int64
	alone := false
	for _, word := range words {
		if word == "alone" {
			alone = true
			continue
		}
		text, cost, hasCost := strings.Cut(word, "*")
		if !hasCost {
			cost = "1"
		}
		entries := casetest.Entries(strings.ReplaceAll(text, ",", " "))
		asked.Add(entries, by.set.Domain("shop").Match(entries), nil)
		costs = append(costs, casetest.Parsed(c, func(s string) (int64, error) { return strconv.ParseInt(s, 10, 64) }, cost))
	}
	asked.MakeHits(by.set.Domain("shop"), math.MaxInt)
	for i := range asked.Hits {
		h := &asked.Hits[i]
		h.N = costs[max(h.Group, ^h.Group)]
		h.Peek, h.ByItself = h.N == 0, alone
	}
	return asked.Hits
}

// request sends a request, or xN of them one after the other, and counts their answers.
func (p *player) request(c casetest.Command, by *process) string {
	times, every, within := 1, time.Duration(0), time.Hour
	var words []string
	for _, word := range c.Args {
		switch name, value, _ := strings.Cut(word, "="); {
		case name == "every":
			every = casetest.Parsed(c, time.ParseDuration, value)
		case name == "within":
			within = casetest.Parsed(c, time.ParseDuration, value)
		case word[0] == 'x' && value == "":
			times = casetest.Parsed(c, strconv.Atoi, word[1:])
		default:
			words = append(words, word)
		}
	}
	hits := p.hits(c, by, words)
	count, answers := map[string]int{}, []string(nil)
	var took time.Duration
	for range times {
		start := time.Now()
		answer := once(p.Context(), by, hits, within)
		took += time.Since(start)
		if times > 1 {
			rest()
			answer, _, _ = strings.Cut(answer, ", left")
		}
		if count[answer]++; count[answer] == 1 {
			answers = append(answers, answer)
		}
		time.Sleep(every)
	}
	var out strings.Builder
	for _, answer := range answers {
		if times > 1 {
			fmt.Fprintf(&out, "%d ", count[answer])
		}
		out.WriteString(answer + "\n")
	}
	if took = took.Round(time.Millisecond); took > 0 {
		fmt.Fprintf(&out, "after %s\n", took)
	}
	return out.String()
}

// once sends one request, and returns its result, who decided it, and what is left of each limit.
func once(ctx context.Context, by *process, hits []limiter.Hit, within time.Duration) string {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var called bool
	out := make([]limiter.Decision, len(hits))
	err := errors.New("panicked")
	panics.Catch("request", func() { err = by.Take(context.WithValue(ctx, calledKey{}, &called), hits, out) })
	who := map[bool]string{true: "Redis", false: "permits"}[called]
	if err != nil {
		return "failed: " + err.Error()
	}
	answer := "allowed by " + who
	if slices.ContainsFunc(out, func(d limiter.Decision) bool { return !d.Allowed }) {
		answer = "denied by " + who
	}
	for _, d := range out {
		answer = fmt.Sprintf("%s, left %d", answer, d.Remaining)
	}
	return answer
}

// print shows the statistics of leases, and for each descriptor the hits that Redis charged and the permits on lease.
func (p *player) print(c casetest.Command, by *process) string {
	p.mu.Lock()
	calls := p.calls
	p.mu.Unlock()
	hits := p.hits(c, by, c.Args)
	s := by.Stats()
	var out strings.Builder
	fmt.Fprintf(&out, "%d calls; %d requests by permits: %d acquired, %d released, %d lost, %d left of %d keys\n",
		calls, s.Answers, s.Acquired, s.Released, s.Lost, s.Permits, s.Keys)
	for i, h := range hits {
		h.N, h.Peek = 0, true
		var d [1]limiter.Decision
		if err := p.store.Take(p.Context(), []limiter.Hit{h}, d[:]); err != nil {
			c.Fatalf("%v", err)
		}
		permits, _ := by.Permits(h.Key)
		fmt.Fprintf(&out, "%s: %d charged, %d on lease\n", c.Args[i], h.Policy.Capacity()-d[0].Remaining, permits)
	}
	return out.String()
}
