package app

import (
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// redisOptions have the counters in Redis, and rules of their own.
func redisOptions(t *testing.T, redis *redistest.Server, rules string) Options {
	t.Helper()
	o := options(t, rules)
	o.Store, o.KnownDenials = redis.URL(), true
	return o
}

// admin sends requests as the commands do on the same machine.
func (p *process) admin() *adminapi.Client {
	return p.adminBy(adminapi.Options{Server: "unix:" + adminapi.Socket("auto", p.app.HTTPAddr())})
}

// byHTTP sends requests as the commands do on another machine.
func (p *process) byHTTP(tokenFile string) *adminapi.Client {
	return p.adminBy(adminapi.Options{Server: p.app.HTTPAddr(), TokenFile: tokenFile})
}

func (p *process) adminBy(o adminapi.Options) *adminapi.Client {
	p.t.Helper()
	c, err := adminapi.New(o)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(c.Close)
	return c
}

// get is the only limit of a client's counters.
func (p *process) get(client string) adminapi.KeyLimit {
	p.t.Helper()
	var state adminapi.KeyState
	query := url.Values{"domain": {"shop"}, "descriptor": {"client=" + client}}
	if err := p.admin().Get(p.t.Context(), "/keys/get", query, &state); err != nil {
		p.t.Fatal(err)
	}
	if len(state.Limits) != 1 {
		p.t.Fatalf("%+v, want one limit", state)
	}
	return state.Limits[0]
}

// deniesByItself asks for a client and reports whether a cached denial answered.
func (p *process) deniesByItself(client string) bool {
	p.t.Helper()
	before := p.metric("weir_known_denials_total")
	p.ask(client)
	return p.metric("weir_known_denials_total") != before
}

func (p *process) reset(t adminapi.ResetRequest) adminapi.ResetResult {
	p.t.Helper()
	var done adminapi.ResetResult
	if err := p.admin().Post(p.t.Context(), "/keys/reset", t, &done); err != nil {
		p.t.Fatal(err)
	}
	return done
}

func (p *process) boost(in adminapi.BoostRequest) adminapi.BoostStatus {
	p.t.Helper()
	var made adminapi.BoostStatus
	if err := p.admin().Post(p.t.Context(), "/boosts", in, &made); err != nil {
		p.t.Fatal(err)
	}
	return made
}

// inForce is how many boosts are.
func (p *process) inForce() string { return p.metric("weir_boosts") }

// allowed is the number that the limit of a client has now.
func (p *process) allowed(client string) func() string {
	return func() string { return strconv.FormatInt(p.get(client).RequestsPerUnit, 10) }
}

func rule(factor float64) adminapi.BoostRequest {
	return adminapi.BoostRequest{Domain: "shop", Rule: "client", Factor: factor, For: "1h", Reason: "sale", Author: "ann"}
}

// A counter that one process resets is new to the other, which knew a denial of it; the log says who did it, without
// the value.
func TestResetIsForAll(t *testing.T) {
	redis := redistest.Start(t)
	one, two := start(t, redisOptions(t, redis, rulesOf("1"))), start(t, redisOptions(t, redis, rulesOf("1")))
	const who = "ann-s3cret"
	denied := func() {
		t.Helper()
		for _, p := range []*process{one, two} {
			want(t, "cached denial", "true", func() string {
				return strconv.FormatBool(p.deniesByItself(who))
			})
		}
	}
	denied()
	if got := one.get(who); got.Remaining != 0 || *got.Count < 1 || got.RetryAfter == nil || *got.RetryAfter <= 0 ||
		got.Key != "fixed_window|shop|client="+who {
		t.Errorf("%+v", got)
	}
	done := one.reset(adminapi.ResetRequest{Domain: "shop", Descriptor: "client=" + who})
	if len(done.Counters) != 1 || !done.Counters[0].Existed || done.Rule != "client" {
		t.Errorf("%+v", done)
	}
	want(t, "the other process", "OK", func() string { return two.ask(who) })
	denied()
	one.reset(adminapi.ResetRequest{Key: "weir:1:fixed_window|shop|client=" + who})
	want(t, "the other process", "OK", func() string { return two.ask(who) })

	if n := one.logged("msg=audit action=reset result=ok client=socket addr=@"); n != 2 {
		t.Errorf("%d resets in the log", n)
	}
	if one.logged("key_hashes=") != 2 || one.logged("s3cret") != 0 {
		t.Errorf("the log has no hash, or the value:\n%s", one.log)
	}
}

// A boost by one process is followed by the other, shown by both, outlives a reload of each, and is gone when it is
// removed.
func TestBoostIsForAll(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	o := redisOptions(t, redis, rulesOf("2"))
	one, two := start(t, o), start(t, redisOptions(t, redis, rulesOf("2")))
	two.ask("me")
	two.ask("me")
	want(t, "the answer before", "OVER_LIMIT", func() string { return two.ask("me") })

	made := one.boost(rule(100))
	if !made.InForce || made.Limits[0].RequestsPerUnit != 2 || made.Limits[0].Boosted != 200 {
		t.Errorf("%+v", made)
	}
	want(t, "boosts in force", "1", two.inForce)
	if got := two.ask("me"); got != "OK" {
		t.Errorf("boosted, the answer is %s", got)
	}
	got := two.get("me")
	if got.RequestsPerUnit != 200 || got.Boost == nil || got.Boost.ID != made.ID || got.Boost.Unboosted != 2 ||
		*got.Count < 3 {
		t.Errorf("the state under a boost: %+v", got)
	}
	writeFile(t, o.Rules[0], rulesOf("3"))
	want(t, "the limit after a reload", "300", one.allowed("me"))

	var list adminapi.BoostList
	if err := two.admin().Get(t.Context(), "/boosts", nil, &list); err != nil || len(list.Boosts) != 1 ||
		list.Boosts[0].Reason != "sale" {
		t.Errorf("%+v, %v", list, err)
	}
	var removed adminapi.Boost
	if err := two.admin().Delete(t.Context(), "/boosts/"+made.ID, &removed); err != nil {
		t.Fatal(err)
	}
	want(t, "boosts in force", "0", one.inForce)
	if got := one.ask("me"); got != "OVER_LIMIT" {
		t.Errorf("after the boost the answer is %s", got)
	}
	if one.logged("msg=audit action=boost result=ok client=socket") != 1 ||
		two.logged("msg=audit action=boost_remove result=ok") != 1 {
		t.Errorf("the log does not have it:\n%s\n%s", one.log, two.log)
	}

	short := rule(3)
	short.Rule, short.Descriptor, short.For = "", "client=me", "2s"
	one.boost(short)
	want(t, "the client's limit", "6", two.allowed("me"))
	if got := two.allowed("you")(); got != "2" {
		t.Errorf("another client's limit is %s", got)
	}
	want(t, "the client's limit at the end", "2", two.allowed("me"))
	want(t, "the client's limit at the end", "3", one.allowed("me"))
}

// A denial that was known before a boost is forgotten at its end, also if the boost has drained the counter meanwhile.
func TestBoostEndsOldDenials(t *testing.T) {
	rules := "domain: shop\ndescriptors: [{key: client, rate_limit: {algorithm: funnel, requests_per_unit: 1, unit: hour, burst: 1}}]\n"
	redis := redistest.Start(t)
	p := start(t, redisOptions(t, redis, rules))
	want(t, "cached denial", "true", func() string {
		return strconv.FormatBool(p.deniesByItself("me"))
	})
	made := p.boost(rule(1000))
	redistest.Do(t, redis, "del", p.get("me").Key, "weir:1:"+p.get("me").Key) // as if it had drained
	if err := p.admin().Delete(t.Context(), "/boosts/"+made.ID, &adminapi.Boost{}); err != nil {
		t.Fatal(err)
	}
	if got := p.ask("me"); got != "OK" {
		t.Errorf("after the boost the answer is %s: an old denial stands", got)
	}
}

// Without Redis a boost stays, no other is made, nothing is reset, and errors say why.
func TestLiveWithoutRedis(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t, "--appendonly", "yes")
	p := start(t, redisOptions(t, redis, rulesOf("1")))
	p.ask("me")
	p.boost(rule(50))
	redis.Stop()
	want(t, "weir_boosts_reachable", "0", func() string { return p.metric("weir_boosts_reachable") })
	if got := p.inForce(); got != "1" {
		t.Errorf("%s boosts in force without Redis", got)
	}
	c := p.admin()
	for what, err := range map[string]error{
		"a boost": c.Post(t.Context(), "/boosts", rule(60), nil),
		"a reset": c.Post(t.Context(), "/keys/reset", adminapi.ResetRequest{Domain: "shop", Descriptor: "client=me"}, nil),
		"a look":  c.Get(t.Context(), "/keys/get", url.Values{"domain": {"shop"}, "descriptor": {"client=me"}}, nil),
	} {
		if err == nil || !strings.Contains(err.Error(), "limit store unavailable: ") ||
			!strings.Contains(err.Error(), "redis://") {
			t.Errorf("%s without Redis: %v", what, err)
		}
	}
	if p.logged("action=reset result=failed") != 1 || p.logged("action=boost result=failed") != 1 {
		t.Errorf("what failed is not in the log:\n%s", p.log)
	}
	redis.Restart()
	want(t, "weir_boosts_reachable", "1", func() string { return p.metric("weir_boosts_reachable") })
	if got := p.inForce(); got != "1" {
		t.Errorf("%s boosts in force after Redis came back", got)
	}
	if got := p.get("me").RequestsPerUnit; got != 50 {
		t.Errorf("the limit is %d after Redis came back", got)
	}
}

// Rules that are published while a boost is in force are boosted from their first request on; a process that starts
// then has the boost, too.
func TestPublishWhileBoosted(t *testing.T) {
	redis := redistest.Start(t)
	publishAfter(t, redis, 0, rulesOf("1"))
	p := start(t, fromStore(t, redis))
	p.boost(rule(100))
	publishAfter(t, redis, 1, rulesOf("2"))
	want(t, "version", "2 of 2", p.published)
	if got := p.allowed("me")(); got != "200" {
		t.Errorf("the limit of the new rules is %s", got)
	}
	later := start(t, fromStore(t, redis))
	if got := later.allowed("me")(); got != "200" {
		t.Errorf("where it began later the limit is %s", got)
	}
}

// Who changes something needs the token, where there is one; who looks does not.
func TestLiveNeedsTheToken(t *testing.T) {
	o := options(t, rulesOf("1"))
	o.HTTPTokenFile = filepath.Join(t.TempDir(), "token")
	writeFile(t, o.HTTPTokenFile, "s3cret\n")
	p := start(t, o)
	p.ask("me")
	target := adminapi.ResetRequest{Domain: "shop", Descriptor: "client=me"}
	anybody, operator := p.byHTTP(""), p.byHTTP(o.HTTPTokenFile)
	for what, err := range map[string]error{
		"POST /keys/reset":  anybody.Post(t.Context(), "/keys/reset", target, nil),
		"POST /boosts":      anybody.Post(t.Context(), "/boosts", rule(2), nil),
		"DELETE /boosts/id": anybody.Delete(t.Context(), "/boosts/id", nil),
	} {
		if err == nil || !strings.Contains(err.Error(), "a token is needed for "+what) {
			t.Errorf("%s without the token: %v", what, err)
		}
	}
	if got := p.get("me"); got.Remaining != 0 || got.RequestsPerUnit != 1 {
		t.Errorf("something has changed without the token: %+v", got)
	}
	if p.logged("msg=audit") != 0 {
		t.Errorf("a log of what was not done:\n%s", p.log)
	}
	var done adminapi.ResetResult
	if err := operator.Post(t.Context(), "/keys/reset", target, &done); err != nil || !done.Counters[0].Existed {
		t.Errorf("with the token: %+v, %v", done, err)
	}
	var made adminapi.BoostStatus
	if err := operator.Post(t.Context(), "/boosts", rule(2), &made); err != nil || !made.InForce {
		t.Errorf("with the token: %+v, %v", made, err)
	}
	if got := p.get("me"); got.Remaining != 2 || got.Boost == nil {
		t.Errorf("in memory, reset and boosted: %+v", got)
	}
	if p.logged("result=ok client=token") != 2 || strings.Contains(p.log.String(), "s3cret") {
		t.Errorf("the log:\n%s", p.log)
	}
}
