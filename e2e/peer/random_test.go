//go:build e2e

package peer

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
)

var (
	seedFlag = flag.Uint64("peer.seed", 0, "seed of the random cases; 0: another one each time")
	caseFlag = flag.Int("peer.case", -1, "run only the case of this number")
)

// requestsPerCase is the length of a case.
const requestsPerCase = 40

// randomCase is a random rule set and what is asked of it. All of it follows from seed and number.
type randomCase struct {
	number   int
	domain   string
	rules    []*rule
	requests []*pb.RateLimitRequest
}

func newCase(seed uint64, number int, s style) *randomCase {
	rng := rand.New(rand.NewPCG(seed, uint64(number)))
	if chance(rng, 4) && !s.noLimits {
		s.noModes, s.noNames = true, true // which a request's own limit treats differently
	} else {
		s.noLimits = true
	}
	c := &randomCase{number: number, domain: fmt.Sprintf("case%d", number), rules: randomRules(rng, 3, s)}
	for range requestsPerCase {
		c.requests = append(c.requests, randomRequest(rng, c.domain, c.rules, s))
	}
	return c
}

// profile is an environment in which random cases run.
type profile struct {
	name  string
	env   env
	style style
}

// modes are what an environment can switch on, each alone and with each other.
var modes = []profile{
	{"headers and metadata", env{"LIMIT_RESPONSE_HEADERS_ENABLED": "true", "RESPONSE_DYNAMIC_METADATA": "true"}, style{}},
	{"stop", env{"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT": "true"}, style{noModes: true, noTwice: true, noLimits: true}},
	{"local cache", env{"LOCAL_CACHE_SIZE_IN_BYTES": "1000000"}, style{noLimits: true}},
	{"shadow", env{"SHADOW_MODE": "true"}, style{}},
	{"quota", env{"QUOTA_MODE": "true"}, style{}},
	{"Redis for seconds", env{"REDIS_PERSECOND": "true", "CACHE_KEY_PREFIX": "p_"}, style{}},
}

// profiles returns no mode, each mode, and each pair of modes, except for pairs with a known difference in the charges
// of denied requests.
func profiles() []profile {
	all := append([]profile{{"plain", env{}, style{}}}, modes...)
	for i, a := range modes {
		for _, b := range modes[i+1:] {
			if a.name == "stop" && slices.Contains([]string{"local cache", "shadow", "quota"}, b.name) {
				continue
			}
			s, t := a.style, b.style
			all = append(all, profile{
				a.name + " and " + b.name, a.env.with(b.env),
				style{s.noModes || t.noModes, s.noNames || t.noNames, s.noTwice || t.noTwice, s.noLimits || t.noLimits},
			})
		}
	}
	return all
}

// TestRandomRequests compares the answers to random requests of random rules. A short run takes some of the pairs of
// modes, others each time.
func TestRandomRequests(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("to repeat: -peer.seed=%d", seed)
	all := profiles()
	pairs := all[1+len(modes):]
	random := rand.New(rand.NewPCG(seed, 0))
	random.Shuffle(len(pairs), func(i, j int) { pairs[i], pairs[j] = pairs[j], pairs[i] })
	for _, s := range all[:1+len(modes)+casetest.Pick(4, len(pairs))] {
		t.Run(s.name, func(t *testing.T) {
			if !casetest.IsLong() {
				t.Parallel()
			}
			compareRandom(t, seed, s.env, s.style)
		})
	}
}

func compareRandom(t *testing.T, seed uint64, settings env, leave style) {
	t.Helper()
	var cases []*randomCase
	files := map[string]string{}
	for i := range casetest.Pick(15, 250) {
		if *caseFlag >= 0 && *caseFlag != i {
			continue
		}
		c := newCase(seed, i, leave)
		cases = append(cases, c)
		files[c.domain+".yaml"] = ruleFile(c.domain, c.rules)
	}
	p := startPair(t, writeRules(t, files), settings)
	var mu sync.Mutex
	var failed []failure
	compared, kinds := 0, map[string]int{}
	p.each(cases, func(c *randomCase) {
		n, diff, report := p.run(t.Context(), c)
		mu.Lock()
		defer mu.Unlock()
		compared += n
		for _, d := range diff {
			kinds[kind(d)]++
		}
		if len(diff) > 0 {
			failed = append(failed, failure{n, report})
		}
	})
	if want := len(cases) * requestsPerCase / 10; compared < want && len(failed) == 0 {
		t.Errorf("%d requests were compared, want %d at least: windows end too often", compared, want)
	}
	slices.SortFunc(failed, func(a, b failure) int { return a.at - b.at })
	for _, f := range failed[:min(3, len(failed))] {
		t.Error(f.report)
	}
	t.Logf("%d requests of %d cases compared, %d cases differ %v", compared, len(cases), len(failed), kinds)
}

// each calls run for each case, some at once.
func (p *pair) each(cases []*randomCase, run func(*randomCase)) {
	queue := make(chan *randomCase)
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for c := range queue {
				run(c)
			}
		})
	}
	for _, c := range cases {
		queue <- c
	}
	close(queue)
	workers.Wait()
}

// run asks both until they differ, or a window ends, and returns how many requests were compared.
func (p *pair) run(ctx context.Context, c *randomCase) (compared int, diff []string, report string) {
	shortest := c.awaitCase()
	began := time.Now().Unix() / shortest
	both := &series{pair: p}
	for i, req := range c.requests {
		peer, weir := both.ask(ctx, req)
		if time.Now().Unix()/shortest != began {
			return i, nil, ""
		}
		diff = unexplained(differences(peer, weir), peer, weir, p.settings)
		if peer.err != nil { // for instance because it has refused the rules
			diff = append(diff, fmt.Sprintf("error: the peer fails, too: %v", peer.err))
		}
		if len(diff) == 0 {
			continue
		}
		return i, diff, c.report(i, diff, peer, weir)
	}
	return len(c.requests), nil, ""
}

// lengths are those of the windows of the case's limits, in seconds, from the shortest to the longest.
func (c *randomCase) lengths() []int64 {
	seen := map[int64]bool{windows[pb.RateLimitResponse_RateLimit_YEAR]: true}
	note := func(unit string) {
		n := pb.RateLimitResponse_RateLimit_Unit_value[strings.ToUpper(unit)]
		if w := windows[pb.RateLimitResponse_RateLimit_Unit(n)]; w > 0 {
			seen[w] = true
		}
	}
	var walk func([]*rule)
	walk = func(rules []*rule) {
		for _, r := range rules {
			if r.limit != nil {
				note(r.limit.unit)
			}
			walk(r.children)
		}
	}
	walk(c.rules)
	for _, req := range c.requests {
		for _, d := range req.GetDescriptors() {
			note(d.GetLimit().GetUnit().String())
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// beginTogether reports whether windows of two lengths have begun at the same second: then the peer has one counter for
// a rule and a request's own limit of another unit.
func beginTogether(lengths []int64, now int64) bool {
	for i, w := range lengths {
		for _, longer := range lengths[i+1:] {
			if now/w*w == now/longer*longer {
				return true
			}
		}
	}
	return false
}

// awaitCase returns when a case can begin: no window ends soon, and none of two lengths have begun together. Where that
// would take long, for instance in the first minute of an hour, requests bring no limits of their own.
func (c *randomCase) awaitCase() (shortest int64) {
	lengths := c.lengths()
	awaitWindow(lengths[0])
	if lengths[0] == 1 && beginTogether(lengths, time.Now().Unix()) {
		<-time.After(time.Until(time.Unix(time.Now().Unix()+1, 0).Add(50 * time.Millisecond)))
	}
	if beginTogether(lengths, time.Now().Unix()) {
		for _, req := range c.requests {
			for _, d := range req.GetDescriptors() {
				d.Limit = nil
			}
		}
	}
	return lengths[0]
}

// awaitWindow returns when so much of a window is left that a case fits into it, or, of an hour or more, a test.
func awaitWindow(seconds int64) {
	window := time.Duration(seconds) * time.Second
	room := min(2*time.Second, window*3/4)
	if window >= time.Hour {
		room = time.Minute
	}
	now := time.Now()
	if end := time.Unix((now.Unix()/seconds+1)*seconds, 0); end.Sub(now) < room {
		<-time.After(time.Until(end.Add(50 * time.Millisecond)))
	}
}

// report shows a request on which the two differ, and how to come to it.
func (c *randomCase) report(at int, diff []string, peer, weir *answer) string {
	var b strings.Builder
	fmt.Fprintf(&b, "case %d, request %d: peer and Weir differ in\n  %s\n", c.number, at, strings.Join(diff, "\n  "))
	fmt.Fprintf(&b, "peer: %s\nweir: %s\n%srequests:\n", peer, weir, ruleFile(c.domain, c.rules))
	for i, req := range c.requests[:at+1] {
		fmt.Fprintf(&b, "  %d: %s\n", i, line(req))
	}
	return b.String()
}

// failure is a case in which the two differ.
type failure struct {
	at     int // the request
	report string
}
