package app

import (
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/rules"
	"github.com/weir-ratelimit/weir/internal/store"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

// publishAfter publishes a rule file in the place of version after, and returns the new version.
func publishAfter(t *testing.T, redis *redistest.Server, after uint64, text string) {
	t.Helper()
	r, err := store.ConnectForCommand(redis.URL(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close() //nolint:errcheck // everything was answered
	sets := rules.NewPublished(r)
	saw := &rules.PublishedSet{}
	if after > 0 {
		if saw, err = sets.Current(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	set, err := rules.NewPublishedSet([]reload.File{{Name: "shop.yaml", Data: []byte(text)}}, "ann@laptop", time.Now())
	if err == nil {
		err = sets.Publish(t.Context(), set, saw.PublishedInfo, rules.DefaultKeep)
	}
	if err != nil || set.Version != after+1 {
		t.Fatalf("version %d, %v, want %d", set.Version, err, after+1)
	}
}

// fromStore are options with the rules in Redis, and a poll so slow that only what Redis tells can be what works.
func fromStore(t *testing.T, redis *redistest.Server, beside ...string) Options {
	t.Helper()
	o := options(t, "")
	o.Rules, o.Store = slices.Concat(beside, []string{"store"}), redis.URL()
	return o
}

// metric is a metric without labels, as text.
func (p *process) metric(name string) string {
	p.t.Helper()
	_, text := p.http("GET", "/metrics")
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+" "); ok {
			return value
		}
	}
	return "none"
}

// published is the version in force, and the one that was read last.
func (p *process) published() string {
	return p.metric("weir_rules_published_version") + " of " + p.metric("weir_rules_published_newest_version")
}

// Without Redis the rules that were read stay, and a folder beside them is still reloaded; a start without it is like
// one without rules.
func TestPublishedRulesWithoutRedis(t *testing.T) {
	redis := redistest.Start(t, "--appendonly", "yes")
	publishAfter(t, redis, 0, rulesOf("1"))
	own := t.TempDir() + "/own.yaml"
	writeFile(t, own, "domain: own\ndescriptors: [{key: a}]\n")
	runs := start(t, fromStore(t, redis, own))
	redis.Stop()

	o := fromStore(t, redis)
	o.Log = slog.New(slog.DiscardHandler)
	if _, err := New(t.Context(), o); err == nil ||
		!strings.Contains(err.Error(), "--rules: the rules cannot be loaded:\n--rules store: read the rules in redis://") {
		t.Errorf("error %v, want one that names Redis", err)
	}
	o.AllowEmptyRules = true
	begins := start(t, o)
	if got := begins.serving(); got != "NOT_SERVING" {
		t.Errorf("health without rules is %s", got)
	}
	writeFile(t, own, "domain: own2\ndescriptors: [{key: a}]\n")
	want(t, "loads", "2", func() string { return strconv.Itoa(runs.logged("rules loaded")) })
	if n := runs.logged("the published rules cannot be read, those that were read last stay"); n != 1 {
		t.Errorf("that Redis is away is logged %d times:\n%s", n, runs.log)
	}
	if got := runs.metric("weir_rules_published_reachable") + runs.metric("weir_rules_refused"); got != "00" {
		t.Errorf("reachable and refused are %s, want 00", got)
	}
	if _, rules := runs.http("GET", "/rules"); !strings.Contains(rules, `"error": "read the rules in redis://`) {
		t.Errorf("/rules does not say why:\n%s", rules)
	}

	redis.Restart()
	want(t, "health", "SERVING", begins.serving)
	publishAfter(t, redis, 1, rulesOf("2"))
	for _, p := range []*process{runs, begins} {
		want(t, "version", "2 of 2", p.published)
		want(t, "reachable", "1", func() string { return p.metric("weir_rules_published_reachable") })
	}
	_, now := runs.http("GET", "/rules")
	for _, want := range []string{`"store:shop.yaml@2"`, own, `"version": 2,`, `"author": "ann@laptop"`} {
		if !strings.Contains(now, want) {
			t.Errorf("/rules does not show %s:\n%s", want, now)
		}
	}
	if n := runs.logged("the published rules can be read again"); n != 1 {
		t.Errorf("that Redis is back is logged %d times:\n%s", n, runs.log)
	}
}
