package decide_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/decide/metadata"
	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/descriptors/rulefile"
	"github.com/weir-ratelimit/weir/internal/guard"
	"github.com/weir-ratelimit/weir/internal/take"
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
		stores, _, _ := strings.Cut(strings.TrimPrefix(s.Text, "# Memory"), ".")
		if strings.Contains(stores, "Redis") {
			t.Run("in redis", func(t *testing.T) {
				s.Play(t, (&player{T: t, redis: redistest.Start(t).URL()}).do, commands...)
			})
		}
		if strings.Contains(stores, "Cluster") {
			t.Run("in a cluster", func(t *testing.T) {
				s.Play(t, (&player{T: t, redis: redistest.StartCluster(t, 3).URL()}).do, commands...)
			})
		}
		if strings.Contains(stores, "redis-cell") {
			t.Run("in redis-cell", func(t *testing.T) {
				p, timeless := &player{T: t, redis: redistest.StartRedisCell(t).URL()}, *s
				timeless.Text = withoutTimes(s.Text)
				timeless.Play(t, func(c casetest.Command) string { return withoutTimes(p.do(c)) }, commands...)
			})
		}
	})
}

var commands = []string{
	"rules", "start ...", "edit", "wait TIME", "ask REQUEST ...", "peek REQUEST ...", "end REQUEST ...",
	"reset DESCRIPTOR",
}

var times = regexp.MustCompile(` reset \S+| \| (Retry-After|S): \d+`)

// withoutTimes removes times, because those of redis-cell depend on the time of day.
func withoutTimes(text string) string { return times.ReplaceAllString(text, "") }

// player plays one scenario.
type player struct {
	*testing.T

	redis   string // URL; empty: counters in memory
	starts  int
	rules   string
	clock   atomic.Int64 // microseconds; the memory store reads it at any time
	process descriptors.Process
	set     *descriptors.Set
	decider *decide.Decider
	reset   func(key string) error
	tokens  map[string]string // weir_start by the names of requests
	said    []string          // what the Observer heard since the last line
	tells   bool              // dynamic metadata
	costs   costs             // of the request
}

func (p *player) do(c casetest.Command) string {
	switch c.Name {
	case "rules":
		p.rules = c.Text
		return c.Text
	case "start":
		p.start(c)
	case "wait":
		p.clock.Add(casetest.Parsed(c, time.ParseDuration, c.Args[0]).Microseconds())
	case "ask", "peek", "end":
		return p.askAll(c)
	case "reset":
		return p.resetCounters(c)
	case "edit":
		p.compile(c)
	}
	return ""
}

// start creates a process with the rules and without counters.
func (p *player) start(c casetest.Command) {
	// Minutes and hours begin.
	p.clock.Store(1_800_000_000 * int64(time.Second/time.Microsecond))
	p.process, p.tokens = descriptors.Process{}, map[string]string{}
	process := &p.process
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
		case option == "denials":
			denials := guard.NewDenials(p.clock.Load)
			denials.Believe(true)
			o.Store = take.Of(o.Store).Behind(denials)
		case option == "headers":
			o.RatelimitHeaders, o.LimitHeaders = true, decide.LimitHeaders{Limit: "L", Remaining: "R", Reset: "S"}
		default:
			if flags[option] == nil {
				c.UnknownOption(option)
			}
			*flags[option] = true
		}
	}
	p.compile(c)
	o.Rules = func() *descriptors.Set { return p.set }
	var err error
	if p.decider, err = decide.New(o); err != nil {
		c.Fatalf("%v", err)
	}
}

// compile makes the last rules active.
func (p *player) compile(c casetest.Command) {
	var err error
	p.set, err = rulefile.CompileFor(p.process, []rulefile.File{{Name: "rules.yaml", Data: []byte(p.rules)}})
	if err != nil {
		c.Fatalf("%v", err)
	}
}

// resetCounters resets the counters of a descriptor.
func (p *player) resetCounters(c casetest.Command) string {
	entries := descriptor(c, c.Args[0]).Entries
	for _, l := range p.set.Domain("shop").Match(entries).Limits {
		if err := p.reset(string(l.AppendKey(nil, entries))); err != nil {
			c.Fatalf("%v", err)
		}
	}
	return ""
}

func (p *player) store() limiter.Store {
	if p.redis == "" {
		memory := p.memory()
		p.reset = func(key string) error { memory.Reset(key); return nil }
		return memory
	}
	const timeout = 5 * time.Second
	p.starts++ // each start has its own keys
	store, err := redisstore.New(redistest.Client(p.T, p.redis, timeout), redisstore.Options{
		Timeout: timeout, KeyPrefix: fmt.Sprintf("start%d:", p.starts), Now: p.clock.Load,
	})
	if err != nil {
		p.Fatal(err)
	}
	p.reset = func(key string) error {
		_, err := store.Reset(p.Context(), key)
		return err
	}
	return store
}

func (p *player) memory() *memstore.Store {
	store, err := memstore.New(memstore.Options{Now: p.clock.Load})
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

// askAll sends the request Nx times. It returns the numbers of answers, and the last one.
func (p *player) askAll(c casetest.Command) (last string) {
	n, err := strconv.Atoi(strings.TrimSuffix(c.Args[0], "x"))
	if err != nil {
		return p.ask(c, "")
	}
	c.Args = c.Args[1:]
	counts := map[string]int{}
	for i := range n {
		last = p.ask(c, strconv.Itoa(i+1))
		code, _, _ := strings.Cut(last, " ")
		counts[code]++
	}
	var all []string
	for _, code := range slices.Sorted(maps.Keys(counts)) {
		all = append(all, fmt.Sprintf("%d %s", counts[code], code))
	}
	_, last, _ = strings.Cut(last, " ")
	return strings.Join(all, ", ") + " " + last
}

// ask returns the result of a request, and the calls of the Observer. number is the request's number of several.
func (p *player) ask(c casetest.Command, number string) string {
	var out strings.Builder
	as, gone := "", false
	var of []descriptors.Entry
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
		if name, ok := strings.CutPrefix(word, "as="); ok {
			as = name + number
			continue
		}
		if name, ok := strings.CutPrefix(word, "of="); ok {
			token := p.tokens[name+number]
			if token == "" {
				c.Fatalf("no request has the name %s%s", name, number)
			}
			of = []descriptors.Entry{{Key: decide.StartKey, Value: token}}
			continue
		}
		if word == "gone" {
			gone = true
			continue
		}
		d := descriptor(c, word)
		d.Entries = append(d.Entries, of...)
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
			var fields structpb.Struct
			if err := proto.Unmarshal(metadata.Append(nil, v, p.costs), &fields); err != nil {
				p.Fatal(err)
			}
			text, _ := json.Marshal(fields.AsMap())
			fmt.Fprintf(&out, "; metadata %s\n", text)
		}
		if _, p.tokens[as] = v.Start(); p.tokens[as] == "" {
			p.tokens[as] = "none"
		}
		held := v.TakeHeld()
		if !gone {
			held.Keep()
		}
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
			c.Fatalf("%q: want REQUESTS/UNIT, such as 5/minute", own)
		}
		d.Own = decide.OwnLimit{Requests: uint32(requests), Window: window.Duration()}
	}
	if i := strings.LastIndex(word, "*"); i >= 0 {
		d.Cost = casetest.Parsed(c, func(text string) (int64, error) { return strconv.ParseInt(text, 10, 64) }, word[i+1:])
		word = word[:i]
	}
	for entry := range strings.SplitSeq(word, ",") {
		if key, value, ok := strings.Cut(entry, "="); ok {
			if key == decide.StartKey {
				value = strings.ReplaceAll(value, "%", " ")
			}
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

func (p *player) Decided(l *descriptors.Limit, o decide.Outcome, hits int64, d *limiter.Decision) {
	if l.Name != "" {
		cached := map[bool]string{true: " cached"}[d.Cached]
		p.said = append(p.said, fmt.Sprintf("%s %s %d%s", l.Name, o, hits, cached))
	}
}
func (p *player) Answered(*descriptors.Domain, bool) {}
func (p *player) Ended(l *descriptors.Limit, charged, spent int64) {
	p.said = append(p.said, fmt.Sprintf("%s ended: charged %d, real %d", l.Name, charged, spent))
}

func (p *player) NotEnded(l *descriptors.Limit) { p.said = append(p.said, l.Name+": an end is lost") }

func (p *player) StoreFailed(err error) { p.said = append(p.said, "store failed: "+err.Error()) }

// down is a store that does not respond.
type down struct{}

func (down) Take(context.Context, []limiter.Hit, []limiter.Decision) error {
	return fmt.Errorf("%w: connection refused", limiter.ErrUnavailable)
}
