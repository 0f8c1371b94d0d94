package decide_test

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/decide/metadata"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// TestScenarios plays testdata/scenarios/*.txt. The README.md there says what a file contains.
func TestScenarios(t *testing.T) {
	casetest.Scenarios(t, func(t *testing.T, s *casetest.Scenario) {
		s.Play(t, (&player{T: t}).do, commands...)
		for first, start := range map[string]func(testing.TB, ...string) *redistest.Server{
			"# Memory and Redis.": redistest.Start, "# Memory and redis-cell.": redistest.StartRedisCell,
		} {
			if strings.HasPrefix(s.Text, first) {
				t.Run("in redis", func(t *testing.T) {
					p, timeless := &player{T: t, redis: start(t)}, casetest.Scenario{Path: s.Path, Text: withoutTimes(s.Text)}
					timeless.Play(t, func(c casetest.Command) string { return withoutTimes(p.do(c)) }, commands...)
				})
			}
		}
	})
}

var commands = []string{"rules", "start", "wait TIME", "ask", "peek"}

var times = regexp.MustCompile(` reset \S+| \| (Retry-After|S): \d+`)

// withoutTimes removes times, because those of a real Redis depend on the time of day.
func withoutTimes(text string) string { return times.ReplaceAllString(text, "") }

// player plays one scenario.
type player struct {
	*testing.T

	redis   *redistest.Server // nil: counters in memory
	rules   string
	clock   int64 // microseconds
	set     *descriptors.Set
	decider *decide.Decider
	said    []string // what the Observer heard since the last line
	tells   bool     // dynamic metadata
	costs   costs    // of the request
}

func (p *player) do(c casetest.Command) string {
	switch c.Name {
	case "rules":
		p.rules = c.Text
		return c.Text
	case "start":
		p.start(c)
	case "wait":
		p.clock += casetest.Parsed(c, time.ParseDuration, c.Args[0]).Microseconds()
	case "ask", "peek":
		return p.ask(c)
	}
	return ""
}

// start creates a process with the rules and without counters.
func (p *player) start(c casetest.Command) {
	// Minutes and hours begin.
	p.clock = 1_800_000_000 * int64(time.Second/time.Microsecond)
	var process descriptors.Process
	o := decide.Options{Config: decide.Config{RetryAfter: true}, Store: p.store(), Observer: p}
	p.tells = false
	flags := map[string]*bool{
		"shadow_mode": &process.ShadowMode, "quota_mode": &process.QuotaMode, "peek_at_limit": &process.PeekAtLimit,
		"charge_each": &o.ChargeEach, "lenient": &o.Lenient,
	}
	for _, option := range c.Args {
		name, value, _ := strings.Cut(option, "=")
		number := func() int { return casetest.Parsed(c, strconv.Atoi, value) }
		switch {
		case name == "on_store_failure":
			process.OnStoreFailure = casetest.Chosen(c, map[string]descriptors.OnStoreFailure{
				"allow": descriptors.Allow, "deny": descriptors.Deny, "local": descriptors.Local, "error": descriptors.Fail,
			}, value)
		case name == "replicas":
			process.Replicas, o.Local = number(), p.memory()
		case name == "max_counters":
			o.MaxCounters = number()
		case name == "max_delayed":
			o.MaxDelayed = number()
		case name == "metadata":
			p.tells, o.DynamicMetadata = true, casetest.Chosen(c, map[string]bool{"on": false, "all": true}, value)
		case option == "down":
			o.Store = down{}
		case option == "no_retry_after":
			o.RetryAfter = false
		case option == "headers":
			o.RatelimitHeaders, o.LimitHeaders = true, decide.LimitHeaders{Limit: "L", Remaining: "R", Reset: "S"}
		default:
			*casetest.Chosen(c, flags, option) = true
		}
	}
	var err error
	p.set, err = rulefile.CompileFor(process, []rulefile.File{{Name: "rules.yaml", Data: []byte(p.rules)}})
	if err != nil {
		c.Fatalf("%v", err)
	}
	o.Rules = func() *descriptors.Set { return p.set }
	if p.decider, err = decide.New(o); err != nil {
		c.Fatalf("%v", err)
	}
}

func (p *player) store() limiter.Store {
	if p.redis == nil {
		return p.memory()
	}
	const timeout = 5 * time.Second
	client := redistest.Client(p.T, p.redis.URL(), timeout)
	if err := client.FlushAll(p.Context()).Err(); err != nil {
		p.Fatal(err)
	}
	store, err := redisstore.New(client, redisstore.Options{Timeout: timeout})
	if err != nil {
		p.Fatal(err)
	}
	return store
}

func (p *player) memory() limiter.Store {
	store, err := memstore.New(memstore.Options{Now: func() int64 { return p.clock }})
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() {
		if err := store.Close(); err != nil {
			p.Error(err)
		}
	})
	return store
}

// ask returns the result of a request, and the calls of the Observer.
func (p *player) ask(c casetest.Command) string {
	var out strings.Builder
	r := p.decider.NewRequest()
	r.Domain = "shop"
	p.costs = costs{own: map[int]uint64{}}
	for _, word := range c.Args {
		if addend, ok := strings.CutPrefix(word, "addend="); ok {
			p.costs.addend = uint32(casetest.Parsed(c, strconv.Atoi, addend))
			continue
		}
		if domain, ok := strings.CutPrefix(word, "domain="); ok {
			r.Domain = domain
			continue
		}
		d := descriptor(c, word)
		if strings.Contains(word, "*") {
			p.costs.own[len(r.Descriptors)] = uint64(d.Cost)
		}
		r.Add(d)
	}
	p.said = nil
	var v *decide.Verdict
	var err error
	if c.Name == "peek" {
		v, err = p.decider.Peek(p.Context(), p.set, r)
	} else {
		v, err = decided(p.Context(), p.decider, r)
	}
	if err != nil {
		fmt.Fprintf(&out, "error: %v\n", err)
	} else {
		fmt.Fprintf(&out, "%s\n", show(v))
		if p.tells {
			text, _ := json.Marshal(metadata.Of(v, p.costs).AsMap())
			fmt.Fprintf(&out, "; metadata %s\n", text)
		}
		held := v.TakeHeld()
		held.Keep()
		if v.Wait == 0 { // else it stays delayed: nobody waits here
			held.Release(p.Context())
		}
	}
	for _, line := range p.said {
		fmt.Fprintf(&out, "; %s\n", line)
	}
	return out.String()
}

// costs has the hits_addend of a request and of its descriptors.
type costs struct {
	addend uint32
	own    map[int]uint64
}

func (c costs) HitsAddend() uint32 { return c.addend }
func (c costs) OwnHitsAddend(i int) (hits uint64, ok bool) {
	hits, ok = c.own[i]
	return hits, ok
}

// descriptor reads key=value,key=value*COST@REQUESTS/UNIT, where *COST and @REQUESTS/UNIT may be left out.
func descriptor(c casetest.Command, word string) (d decide.Descriptor) {
	d.Cost = 1
	word, own, hasOwn := strings.Cut(word, "@")
	if hasOwn {
		n, unit, _ := strings.Cut(own, "/")
		window, ok := map[string]descriptors.Unit{
			"second": descriptors.Second, "minute": descriptors.Minute, "hour": descriptors.Hour, "day": descriptors.Day,
			"month": descriptors.Month, "year": descriptors.Year,
		}[unit]
		requests, err := strconv.ParseUint(n, 10, 32)
		if err != nil || !ok {
			c.Fatalf("%q: want REQUESTS/UNIT, %v", own, err)
		}
		d.Own = decide.OwnLimit{Requests: uint32(requests), Window: window.Duration()}
	}
	if i := strings.LastIndex(word, "*"); i >= 0 {
		d.Cost = casetest.Parsed(c, func(text string) (int64, error) { return strconv.ParseInt(text, 10, 64) }, word[i+1:])
		word = word[:i]
	}
	for entry := range strings.SplitSeq(word, ",") {
		if key, value, ok := strings.Cut(entry, "="); ok {
			d.Entries = append(d.Entries, descriptors.Entry{Key: key, Value: value})
		}
	}
	return d
}

// show returns a verdict in one line: whether the request passes, each status, the headers, and the rule's body. A
// status has OK or OVER_LIMIT and, with a limit, name requests/unit, remaining hits and time until reset.
func show(v *decide.Verdict) string {
	code := map[bool]string{false: "OK", true: "OVER_LIMIT"}
	var b strings.Builder
	b.WriteString(code[v.Denied])
	for i := range v.Statuses {
		st := &v.Statuses[i]
		b.WriteString(" | " + code[st.Over])
		switch l := st.Limit; {
		case l != nil:
			name := l.Name
			if name != "" {
				name += " "
			}
			fmt.Fprintf(&b, " %s%d/%s", name, l.Policy.Limit(), l.Unit)
			if l.UnitMultiplier > 1 {
				fmt.Fprintf(&b, "x%d", l.UnitMultiplier)
			}
			fmt.Fprintf(&b, " left %d", decide.Saturate(st.Remaining))
		case st.Unlimited:
			b.WriteString(" unlimited")
		}
		if st.HasReset {
			fmt.Fprintf(&b, " reset %s", time.Duration(decide.CeilSeconds(st.Reset))*time.Second)
		}
	}
	v.Headers(func(h decide.Header) bool {
		if h.IsNumber {
			h.Text = strconv.FormatInt(h.Number, 10)
		}
		fmt.Fprintf(&b, " | %s: %s", h.Name, h.Text)
		return true
	})
	if response := v.Response(); v.Denied && response != nil && response.Body != "" {
		b.WriteString(" | body: " + response.Body)
	}
	return b.String()
}

// The player is the Observer.

func (p *player) Decided(l *descriptors.Limit, o decide.Outcome, hits int64, _ *limiter.Decision) {
	if l.Name != "" {
		p.said = append(p.said, fmt.Sprintf("%s %s %d", l.Name, o, hits))
	}
}
func (p *player) Answered(*descriptors.Domain, bool) {}
func (p *player) StoreFailed(err error)              { p.said = append(p.said, "store failed: "+err.Error()) }

// down is a store that does not respond.
type down struct{}

func (down) Take(context.Context, []limiter.Hit, []limiter.Decision) error {
	return fmt.Errorf("%w: connection refused", limiter.ErrUnavailable)
}
