package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/rules"
	"github.com/weir-ratelimit/weir/internal/take"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

func TestServe(t *testing.T) {
	p := start(t, options(t, rulesOf("2")))
	for i, want := range []string{"OK", "OK", "OVER_LIMIT"} {
		if got := p.ask("me"); got != want {
			t.Errorf("request %d is answered %s, want %s", i+1, got, want)
		}
	}
	if got := p.serving(); got != "SERVING" {
		t.Errorf("health says %s, want SERVING", got)
	}
	if status, body := p.http("GET", "/readyz"); status != 200 || body != "ready\nprocess: ok\nrules: ok\nstore: ok\n" {
		t.Errorf("/readyz answers %d %q", status, body)
	}
	_, text := p.http("GET", "/rules")
	var rules struct {
		Status struct {
			Hash  string
			Files int
		}
		Rules []struct{ Domain string }
	}
	if err := json.Unmarshal([]byte(text), &rules); err != nil {
		t.Fatal(err)
	}
	if len(rules.Status.Hash) != 64 || rules.Status.Files != 1 || len(rules.Rules) != 1 || rules.Rules[0].Domain != "shop" {
		t.Errorf("/rules answers %s", text)
	}
	_, text = p.http("GET", "/metrics")
	for _, line := range []string{
		`weir_decisions_total{domain="shop",limit="",outcome="allowed",rule="client"} 2`,
		`weir_decisions_total{domain="shop",limit="",outcome="denied",rule="client"} 1`,
		`weir_request_seconds_count 3`,
		`weir_rules_info{hash="` + rules.Status.Hash + `"} 1`,
		`weir_build_info{commit="abc",go_version="go1",version="v1.2.3"} 1`,
		`weir_memory_counters 1`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("/metrics lacks %s", line)
		}
	}
	p.wait()
	for _, line := range []string{
		`msg="rules loaded" reason=start `,
		`msg=serving version=v1.2.3 grpc=` + p.app.GRPCAddr() + ` http=` + p.app.HTTPAddr() +
			` store=memory rules=` + rules.Status.Hash[:12] + ` files=1 limits=1`,
		`msg=stopping `, `msg=stopped all_answered=true`,
	} {
		if n := p.logged(line); n != 1 {
			t.Errorf("%d log lines contain %s, want 1; log:\n%s", n, line, p.log)
		}
	}
}

func TestReload(t *testing.T) {
	o := options(t, rulesOf("1"))
	o.Top.PerRule = 10
	p := start(t, o)
	file := p.app.o.Rules[0]
	limit := func() string { // of a client of its own
		n := 0
		for client := strconv.FormatInt(time.Now().UnixNano(), 10); p.ask(client) == "OK" && n < 10; {
			n++
		}
		return strconv.Itoa(n)
	}
	want(t, "the limit at first", "1", limit)

	replace(t, file, rulesOf("2"))
	want(t, "the limit after an edit", "2", limit)

	replace(t, file, rulesOf("no"))
	refused := func() string { return strconv.Itoa(p.logged("rules refused; the old rules stay in force")) }
	want(t, "refused loads", "1", refused)
	want(t, "the limit after a bad edit", "2", limit)
	if status, body := p.http("POST", "/reload"); status != 422 || !strings.Contains(body, "rules.yaml:2:") {
		t.Errorf("POST /reload of bad rules answers %d %s", status, body)
	}
	if status, body := p.http("GET", "/rules"); status != 200 || !strings.Contains(body, `"errors": [`) {
		t.Errorf("/rules does not show the errors: %d %s", status, body)
	}
	note := regexp.MustCompile(`\nrules: ok \(version [0-9a-f]{12} in force; newest files refused since 2.*Z: 1 error, see GET /rules or the log\)\n`)
	if status, body := p.http("GET", "/readyz"); status != 200 || !note.MatchString(body) {
		t.Errorf("/readyz answers %d while old rules are live, want 200 and that the new ones are refused:\n%s", status, body)
	}
	if _, body := p.http("GET", "/status"); !strings.Contains(body, `"note": "version `) {
		t.Errorf("/status has no note:\n%s", body)
	}
	if err := p.app.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), "rules.yaml:2:") {
		t.Errorf("Reload of bad rules returns %v", err)
	}
	want(t, "lines of one refused content", "1", refused)
	if n := p.logged("rule files have not changed"); n != 1 {
		t.Errorf("%d lines say that nothing changed, want 1", n)
	}

	replace(t, file, rulesOf("3"))
	if status, body := p.http("POST", "/reload"); status != 200 || !strings.Contains(body, `"result": "ok"`) {
		t.Errorf("POST /reload of good rules answers %d %s", status, body)
	}
	want(t, "the limit after POST /reload", "3", limit)
	if _, body := p.http("GET", "/readyz"); !strings.Contains(body, "\nrules: ok\n") {
		t.Errorf("/readyz after good rules:\n%s", body)
	}
	if n := p.logged(`msg="rules loaded"`); n != 3 {
		t.Errorf("%d loads are logged, want 3:\n%s", n, p.log)
	}
	if _, top := p.http("GET", "/top?n=1"); !strings.Contains(top, `"rule": "client"`) {
		t.Errorf("keys do not stay with their rule: %s", top)
	}
	replace(t, file, strings.ReplaceAll(rulesOf("3"), "client", "user"))
	if status, body := p.http("POST", "/reload"); status != 200 {
		t.Error(body)
	}
	if _, top := p.http("GET", "/top"); strings.Contains(top, `"rule": "client"`) {
		t.Errorf("keys of a rule that is gone: %s", top)
	}
}

// Collections are deferred from before rules are compiled until they are live, or refused.
func TestCollectionsWaitForRules(t *testing.T) {
	o := options(t, rulesOf("1"))
	var holds, releases, seen atomic.Int64 // seen: the limit that was live when the last hold ended
	var of *rules.Rules
	o.HoldGC = func() func() {
		holds.Add(1)
		return func() {
			if releases.Load() > 0 {
				seen.Store(of.Set().Limits()[0].Policy.Limit())
			}
			releases.Add(1)
		}
	}
	p := start(t, o, func(a *App) { of = a.rules })
	file := p.app.o.Rules[0]
	for i, content := range []string{"2", "no", "3"} {
		replace(t, file, rulesOf(content)) // at once: half a file is a change, too
		_ = p.app.Reload(t.Context())      // nil but for the second
		held := func() string {
			n := releases.Load() // more than loads, if the watch has a load begin again
			return fmt.Sprint(n >= int64(i+2), holds.Load() == n, seen.Load())
		}
		live := map[string]int{"2": 2, "no": 2, "3": 3}[content]
		want(t, "holds that ended, and the limit then, after "+content, fmt.Sprint(true, true, live), held)
	}
}

func TestNoRulesYet(t *testing.T) {
	o := options(t, "")
	o.Log = slog.New(slog.DiscardHandler)
	_, err := New(t.Context(), o)
	if err == nil || !strings.HasPrefix(err.Error(), "--rules: stat "+o.Rules[0]+": no such file") {
		t.Errorf("New without rules returns %v", err)
	}

	o.AllowEmptyRules = true
	p := start(t, o)
	if got := p.ask("me"); !strings.Contains(got, "Unavailable desc = no rules are loaded yet") {
		t.Errorf("a request without rules is answered %s", got)
	}
	if n := p.logged("rules refused; no rules are in force"); n != 1 {
		t.Errorf("the log says %d times that there are no rules, want once:\n%s", n, p.log)
	}
	status, body := p.http("GET", "/readyz")
	if status != 503 || !strings.Contains(body, "rules: no rules are loaded yet: ") || !strings.Contains(body, o.Rules[0]) {
		t.Errorf("/readyz without rules answers %d %q", status, body)
	}
	if status, body = p.http("GET", "/explain?domain=shop&descriptor=client=eve"); status != 400 ||
		!strings.Contains(body, "no rules are loaded yet; GET /rules shows why") {
		t.Errorf("/explain without rules answers %d %q", status, body)
	}
	if got := p.serving(); got != "NOT_SERVING" {
		t.Errorf("health without rules says %s, want NOT_SERVING", got)
	}
	if status, _ := p.http("GET", "/healthz"); status != 200 {
		t.Errorf("/healthz answers %d, want 200", status)
	}
	replace(t, o.Rules[0], rulesOf("1"))
	want(t, "health", "SERVING", p.serving)
	if got := p.ask("me"); got != "OK" {
		t.Errorf("a request with rules is answered %s", got)
	}
}

type panicking struct{ take.Stage }

func (panicking) Before(*take.Call) bool { panic("broken") }

func TestPanic(t *testing.T) {
	o := options(t, rulesOf("1"))
	o.Stages = func([]string) []take.Stage { return []take.Stage{panicking{}} }
	p := start(t, o)
	for range 2 {
		if got := p.ask("me"); !strings.Contains(got, "code = Internal desc = internal error") ||
			strings.Contains(got, "broken") {
			t.Errorf("a request that panics is answered %s", got)
		}
	}
	if _, text := p.http("GET", "/metrics"); !strings.Contains(text, "weir_panics_total 2\n") {
		t.Error("/metrics does not count 2 panics")
	}
	if n := p.logged("panic=broken"); n != 2 || p.logged("app_test.go") != 2 {
		t.Errorf("log:\n%s", p.log)
	}
}

func TestUnixSockets(t *testing.T) {
	dir, err := os.MkdirTemp("/tmp", "weir") //nolint:usetesting // a socket's path may have 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "grpc.sock")
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	if err := stale.Close(); err != nil {
		t.Fatal(err)
	}

	o := options(t, rulesOf("1"))
	o.GRPCAddr, o.HTTPAddr = "unix:"+path, ""
	p := start(t, o)
	if got := p.ask("me"); got != "OK" {
		t.Errorf("a request over a Unix socket is answered %s", got)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("the socket has permissions %v, %v, want 0660", info.Mode(), err)
	}
	if p.app.HTTPAddr() != "" {
		t.Errorf("HTTP listens on %s, want nowhere", p.app.HTTPAddr())
	}
	o.Log = slog.New(slog.DiscardHandler)
	_, err = New(t.Context(), o)
	if err == nil || err.Error() != "--grpc-addr: listening on unix:"+path+": another process listens on this socket" {
		t.Errorf("a second process on the socket gets %v", err)
	}
	if got := p.ask("you"); got != "OK" {
		t.Errorf("after that a request is answered %s", got)
	}
	p.wait()
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left behind: %v", err)
	}
}

// Without Redis the process starts, answers by policy and says so, everywhere without the password.
func TestRedisUnreachable(t *testing.T) {
	o := options(t, rulesOf("1"))
	o.Store, o.StoreTimeout = "redis://user:topsecret@127.0.0.1:1/0", 50*time.Millisecond
	p := start(t, o)
	for range 3 {
		if got := p.ask("me"); got != "OK" {
			t.Errorf("a request without Redis is answered %s", got)
		}
	}
	status, ready := p.http("GET", "/readyz")
	if status != 503 || !strings.Contains(ready, "store: ") || !strings.Contains(ready, "127.0.0.1:1") {
		t.Errorf("/readyz answers %d %q", status, ready)
	}
	if got := p.serving(); got != "SERVING" {
		t.Errorf("health says %s, want SERVING: requests are answered", got)
	}
	_, metrics := p.http("GET", "/metrics")
	if !strings.Contains(metrics, `outcome="allowed_on_failure",rule="client"} 3`) {
		t.Errorf("/metrics does not count 3 decisions without the store")
	}
	_, rules := p.http("GET", "/rules")
	if _, text := p.http("GET", "/status"); !strings.Contains(text, `"degraded": "Redis unreachable at redis://127.0.0.1:1/0 since `) ||
		!strings.Contains(text, ": of its limits, 1 are not enforced, 0 are counted") {
		t.Errorf("the status is\n%s\nwant the sentence of the log", text)
	}
	p.wait()
	if n := p.logged("Redis unreachable at"); n != 1 {
		t.Errorf("the outage is logged %d times, want once:\n%s", n, p.log)
	}
	if n := p.logged(" store=redis://127.0.0.1:1/0 rules="); n != 1 {
		t.Errorf("log:\n%s", p.log)
	}
	if all := ready + metrics + rules + p.log.String(); strings.Contains(all, "topsecret") {
		t.Errorf("the password is shown:\n%s", all)
	}
}

// cellRules let one request an hour pass, by the redis-cell module, and otherwise deny.
const cellRules = "domain: shop\ndescriptors: [{key: client, rate_limit: {algorithm: funnel, requests_per_unit: 1, unit: hour, " +
	"engine: redis_cell, on_store_failure: deny}}]\n"

// The module is looked for where rules want it, and not in other stores.
func TestRedisCellInNamedStore(t *testing.T) {
	first, second, cell := redistest.Start(t), redistest.Start(t), redistest.StartRedisCell(t)
	for name, tt := range map[string]struct {
		status int
		named  map[string]string
	}{
		"it is there":     {200, map[string]string{"cell": cell.URL(), "other": second.URL()}},
		"it is elsewhere": {503, map[string]string{"cell": second.URL(), "other": cell.URL()}},
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t, strings.Replace(cellRules, "engine:", "store: cell, engine:", 1))
			o.Store, o.NamedStores = first.URL(), tt.named
			p := start(t, o)
			want(t, "readiness", strconv.Itoa(tt.status), p.ready)
			missing := "limit store unavailable: cell=" + second.URL() + ": WEIR this Redis has no redis-cell module"
			want(t, "a store without the module", strconv.FormatBool(tt.status != 200), func() string {
				_, body := p.http("GET", "/readyz")
				return strconv.FormatBool(strings.Contains(body, missing))
			})
		})
	}
}
