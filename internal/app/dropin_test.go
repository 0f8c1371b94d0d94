package app

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// get asks any of the process's addresses.
func get(t *testing.T, method, url, body string) (status int, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close() //nolint:errcheck // only read from
	got, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(got)
}

// healthcheck is the answer of /healthcheck.
func (p *process) healthcheck() string {
	status, body := p.http("GET", "/healthcheck")
	return strings.TrimSpace(http.StatusText(status) + " " + body)
}

// /healthcheck is well once Redis has answered, stays so while it is away, and ends with the stop.
func TestHealthcheck(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	redis.Stop()
	o := options(t, rulesOf("1"))
	o.Store, o.StoreTimeout, o.DrainDelay = redis.URL(), 100*time.Millisecond, patience
	p := start(t, o)
	if got := p.healthcheck(); got != "Internal Server Error" {
		t.Errorf("before Redis has answered it is %q", got)
	}
	redis.Restart()
	want(t, "/healthcheck with Redis", "OK OK", p.healthcheck)
	redis.Stop()
	want(t, "/readyz without Redis", "503", p.ready)
	if got := p.healthcheck(); got != "OK OK" {
		t.Errorf("while Redis is away it is %q", got)
	}
	p.app.o.DrainDelay = 3 * time.Second
	p.stop()
	want(t, "/healthcheck of a process that stops", "Internal Server Error", p.healthcheck)
	if status, _ := p.http("GET", "/healthz"); status != http.StatusOK {
		t.Errorf("/healthz of a process that stops answers %d, want 200", status)
	}
}

// /json decides with any method, also for other machines, and is only there on request.
func TestJSON(t *testing.T) {
	const body = `{"domain": "shop", "descriptors": [{"entries": [{"key": "client", "value": "a"}]}]}`
	off := start(t, options(t, rulesOf("1")))
	if status, text := get(t, "POST", "http://"+off.app.HTTPAddr()+"/json", body); status != http.StatusNotFound {
		t.Errorf("without --http-json it is %d %s", status, text)
	}
	o := options(t, rulesOf("1"))
	o.HTTPJSON = true
	p := start(t, o)
	url := "http://" + p.app.HTTPAddr() + "/json"
	for _, c := range []struct {
		method, body string
		status       int
		text         string
	}{
		{"POST", body, 200, `"overallCode":"OK"`},
		{"PUT", body, 429, `"overallCode":"OVER_LIMIT"`},
		{"POST", `{"domain": "other", "descriptors": [{"entries": [{"key": "a"}]}]}`, 200, `"overallCode":"OK"`},
		{"POST", `{"domian": "shop"}`, 400, `unknown field`},
		{"POST", "", 400, `not a RateLimitRequest`},
		{"POST", `{"domain": "` + strings.Repeat("a", 300<<10) + `"}`, 400, "too large"},
	} {
		status, text := get(t, c.method, url, c.body)
		if status != c.status || !strings.Contains(strings.ReplaceAll(text, `": "`, `":"`), c.text) {
			t.Errorf("%s %.80s: %d %s, want %d %s", c.method, c.body, status, text, c.status, c.text)
		}
	}
}

// Where Envoy needs a certificate, /json needs the right to change state.
func TestJSONIsGuardedAsGRPC(t *testing.T) {
	o := options(t, rulesOf("1"))
	o.HTTPJSON = true
	ca := proctest.NewAuthority(t)
	o.GRPCTLSCert, o.GRPCTLSKey = ca.Issue("server", "127.0.0.1")
	o.GRPCTLSClientCA = ca.CA()
	p := start(t, o)
	if status, text := get(t, "POST", "http://"+p.app.HTTPAddr()+"/json", "{}"); status != http.StatusForbidden {
		t.Errorf("status %d, want 403: %s", status, text)
	}
}

// The debug pages are those of envoyproxy/ratelimit and change nothing; the metrics have an address of their own.
func TestDebugAndMetricsAddresses(t *testing.T) {
	o := options(t, `domain: shop
descriptors:
  - key: client
    rate_limit: {requests_per_unit: 3, unit: minute}
    descriptors:
      - {key: path, value: /a=b, shadow_mode: true, rate_limit: {requests_per_unit: 4294967295, unit: hour}}
      - {key: free, rate_limit: {unlimited: true}}
`)
	o.DebugAddr, o.MetricsAddr, o.MetricsPath, o.Metrics.Classic = proctest.FreeAddr(t), proctest.FreeAddr(t), "/m", true
	p := start(t, o)
	p.ask("a")
	base := "http://" + o.DebugAddr
	for path, want := range map[string]string{
		"/": "/rlconfig: print out the currently loaded configuration for debugging\n",
		"/rlconfig": "shop.client: unit=MINUTE requests_per_unit=3, shadow_mode: false, quota_mode: false\n" +
			"shop.client.path_/a=b: unit=HOUR requests_per_unit=4294967295, shadow_mode: true, quota_mode: false\n" +
			"shop.client.free: unit=UNKNOWN requests_per_unit=0, shadow_mode: false, quota_mode: false\n",
		"/stats": "ratelimit.service.rate_limit.shop.client.total_hits: 1\n",
	} {
		if status, text := get(t, "GET", base+path, ""); status != 200 || !strings.Contains(text, want) {
			t.Errorf("%s: %d\n%s\nwant\n%s", path, status, text, want)
		}
	}
	if _, text := get(t, "GET", base+"/debug/pprof/", ""); strings.Contains(text, "goroutine") {
		t.Errorf("profiles are there for everybody:\n%s", text)
	}
	for _, path := range []string{"/rlconfig", "/reload", "/keys/reset"} {
		if status, _ := get(t, "POST", base+path, "{}"); status != http.StatusMethodNotAllowed {
			t.Errorf("POST %s: %d", path, status)
		}
	}
	metrics := "http://" + o.MetricsAddr
	const line = `ratelimit_service_rate_limit_total_hits{domain="shop",key1="client",key2=""} 1`
	if status, text := get(t, "GET", metrics+"/m", ""); status != 200 || !strings.Contains(text, line) {
		t.Errorf("/m: %d\n%s", status, text)
	}
	for _, path := range []string{"/metrics", "/rules", "/"} {
		if status, _ := get(t, "GET", metrics+path, ""); status != http.StatusNotFound {
			t.Errorf("GET %s at the address of metrics: %d", path, status)
		}
	}
}

// limitsInForce returns the sum of the active limits: "" without rules, with which every test here begins.
func (p *process) limitsInForce() string {
	var all []string
	if set := p.app.rules.Set(); set != nil {
		for _, l := range set.Limits() {
			all = append(all, strconv.FormatInt(l.Policy.Limit(), 10))
		}
	}
	return strings.Join(all, " ")
}

// The directory that envoyproxy/ratelimit reads may be missing at the start. Once it had rules, they stay.
func TestDirectoryOfRatelimit(t *testing.T) {
	dir := t.TempDir() + "/data"
	o := options(t, "")
	o.Rules, o.RulesPrefix, o.RulesEveryFile, o.Poll = []string{dir}, "config", true, time.Second
	p := start(t, o)
	if got := p.ask("a") + p.limitsInForce(); got != "OK" {
		t.Errorf("without rules the answer is %s", got)
	}
	if n := p.logged("there are no rules, so every request is admitted"); n != 1 {
		t.Errorf("the log warns %d times that there are no rules, want once:\n%s", n, p.log.String())
	}
	if err := os.MkdirAll(dir+"/config", 0o700); err != nil {
		t.Fatal(err)
	}
	replace(t, dir+"/config/no-extension", rulesOf("5"))
	want(t, "limits in force", "5", p.limitsInForce)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	_ = p.app.Reload(t.Context()) // refused
	if got := p.limitsInForce(); got != "5" {
		t.Errorf("after the directory is gone %q are in force, want 5", got)
	}
}

// Limits per second are counted in --per-second-store, also those that a request brings along; all others are not.
func TestPerSecondStore(t *testing.T) {
	first, second := redistest.Start(t), redistest.Start(t)
	keys := func(s *redistest.Server) string {
		all, err := redistest.Client(t, s.URL(), patience).Keys(t.Context(), "*window*").Result()
		if err != nil {
			t.Fatal(err)
		}
		return strconv.Itoa(len(all))
	}
	o := options(t, `domain: shop
descriptors:
  - {key: client, value: second, rate_limit: {requests_per_unit: 9, unit: second}}
  - {key: client, value: hour, rate_limit: {requests_per_unit: 9, unit: hour}}
`)
	o.Store, o.PerSecondStore = first.URL(), second.URL()
	p := start(t, o)
	want(t, "the store", "200", p.ready)
	before := keys(first)
	if got := p.ask("second"); got != "OK" {
		t.Errorf("per second: %s", got)
	}
	want(t, "a counter in the second store", "true", func() string { // it goes with its second
		p.ask("second")
		return strconv.FormatBool(keys(second) != "0")
	})
	if keys(first) != before {
		t.Errorf("per second: %s keys in the first store, want %s", keys(first), before)
	}
	if got := p.ask("hour"); got != "OK" || keys(first) == before {
		t.Errorf("per hour: %s, %s keys in the first store", got, keys(first))
	}
}

// With --otel-protocol http, traces go to the HTTP port of a collector.
func TestTracesOverHTTP(t *testing.T) {
	paths := make(chan string, 10)
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case paths <- r.URL.Path + " " + r.Header.Get("Content-Type"):
		default:
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	defer collector.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	t.Setenv("OTEL_TRACES_SAMPLER", "always_on")
	o := options(t, rulesOf("1"))
	o.OTel.Traces, o.OTel.Protocol = true, "http"
	p := start(t, o)
	p.ask("a")
	p.wait() // it sends the last of them
	select {
	case got := <-paths:
		if got != "/v1/traces application/x-protobuf" {
			t.Errorf("it sends to %s", got)
		}
	default:
		t.Error("it sends nothing")
	}
}
