package app

import (
	"net/url"
	"strconv"
	"testing"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// redisOptions have the counters in Redis, and rules of their own.
func redisOptions(t *testing.T, redis *redistest.Server, rules string) Options {
	t.Helper()
	o := options(t, rules)
	o.Store, o.CachedDenials = redis.URL(), true
	return o
}

// admin sends requests as the commands do on the same machine.
func (p *process) admin() *adminapi.Client {
	return p.adminBy(adminapi.Options{Server: "unix:" + adminapi.Socket("auto", p.app.HTTPAddr())})
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
	before := p.metric("weir_cached_denials_total")
	p.ask(client)
	return p.metric("weir_cached_denials_total") != before
}

// allowed is the number that the limit of a client has now.
func (p *process) allowed(client string) func() string {
	return func() string { return strconv.FormatInt(p.get(client).RequestsPerUnit, 10) }
}

// Cached denials end when other rules go live: under them the counter may have drained.
func TestOtherRulesEndCachedDenials(t *testing.T) {
	limit := func(n string) string {
		return "domain: shop\ndescriptors: [{key: client, rate_limit: {algorithm: funnel, requests_per_unit: " + n +
			", unit: hour, burst: 1}}]\n"
	}
	redis := redistest.Start(t)
	o := redisOptions(t, redis, limit("1"))
	p := start(t, o)
	want(t, "cached denial", "true", func() string {
		return strconv.FormatBool(p.deniesByItself("me"))
	})
	for _, n := range []string{"1000", "1"} {
		replace(t, o.Rules[0], limit(n))
		want(t, "the limit in force", n, p.allowed("me"))
	}
	redistest.Do(t, redis, "del", p.get("me").Key, "weir:1:"+p.get("me").Key) // as if it had drained
	if got := p.ask("me"); got != "OK" {
		t.Errorf("after two edits of the rule the response is %s: an old denial stands", got)
	}
}

// What cannot be a counter starts again, and the log says so without its key.
func TestCounterThatCannotBeRead(t *testing.T) {
	redis := redistest.Start(t)
	p := start(t, redisOptions(t, redis, rulesOf("1")))
	redistest.Do(t, redis, "set", "weir:1:fixed_window|shop|client=s3cret", "nonsense")
	want(t, "a request", "OK", func() string { return p.ask("s3cret") })
	want(t, "lines about it", "1", func() string { return strconv.Itoa(p.logged(`msg="counters start again`)) })
	if p.logged("s3cret") != 0 {
		t.Errorf("the log has the value:\n%s", p.log)
	}
}
