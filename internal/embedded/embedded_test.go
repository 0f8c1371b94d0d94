package embedded

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/internal/test/partnertest"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

const shop = `
domain: shop
descriptors:
  - key: key
    value: slow
    rate_limit: {algorithm: leaky_queue, unit: second, requests_per_unit: 1, burst: 20, max_wait: 60s}
  - key: key
    rate_limit: {unit: year, requests_per_unit: 2}
`

const byKey = `[{"actions": [{"request_headers": {"header_name": "x-key", "descriptor_key": "key"}}]}]`

// configOf is a filter_config.
func configOf(t *testing.T, flags []string, words ...string) []byte {
	t.Helper()
	list, err := json.Marshal(flags)
	if err != nil {
		t.Fatal(err)
	}
	words = append(words, `"domain": "shop"`, `"flags": `+string(list), `"rate_limits": `+byKey)
	return []byte("{" + strings.Join(words, ", ") + "}")
}

func rulesFlag(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(path, []byte(shop), 0o600); err != nil {
		t.Fatal(err)
	}
	return "--rules=" + path
}

func newModule(t *testing.T) *Module {
	t.Helper()
	m := &Module{Log: io.Discard}
	t.Cleanup(func() {
		m.Wait(proctest.Patience)
		if m.survival.remove != nil {
			m.survival.remove()
		}
		if m.pace != nil {
			m.pace.Stop()
		}
	})
	return m
}

func newTestFilter(t *testing.T, m *Module, config []byte) *Filter {
	t.Helper()
	f, err := m.NewFilter(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f
}

// ask decides a request of a key, and returns a copy of the answer, and whether it was answered at once.
func ask(ctx context.Context, f *Filter, route *Route, key string) (a Answer, atOnce bool) {
	c := f.Call(route)
	c.AddHeader("x-key", []byte(key))
	if c.Decide() { //nolint:contextcheck // a call of the module has no context
		a = c.Answer
		a.Headers = append([]Header(nil), a.Headers...)
		c.Release() //nolint:contextcheck // as above
		return a, true
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w := &batchedWaiter{ended: make(chan struct{})}
	c.Later(ctx, w)
	f.module.Send()
	<-w.ended
	return w.answer, false
}

func header(a Answer, name string) string {
	for _, h := range a.Headers {
		if h.Name == name {
			return h.Value
		}
	}
	return ""
}

func TestMemoryAnswersAtOnce(t *testing.T) {
	f := newTestFilter(t, newModule(t), configOf(t, []string{rulesFlag(t)}, `"rate_limited_status": {"code": 430}`))
	for i := range 3 {
		a, atOnce := ask(t.Context(), f, nil, "ann")
		switch {
		case !atOnce:
			t.Fatal("memory has to be waited for")
		case i < 2 && (a.Outcome != OK || a.Status != 0 || len(a.Headers) != 0):
			t.Errorf("request %d: %+v, want it to pass", i, a)
		case i == 2 && (a.Outcome != OverLimit || a.Status != 430 || header(a, "retry-after") == "" ||
			header(a, "x-envoy-ratelimited") != "true"):
			t.Errorf("request %d: %+v, want it denied", i, a)
		}
	}
	if a, atOnce := ask(t.Context(), f, &Route{Domain: "other", Plan: f.Plan}, "ann"); !atOnce || a.Outcome != OK {
		t.Errorf("a route with a domain of its own: %+v", a)
	}
}

// Filters with equal flags count together, and one that comes before the other goes keeps the counters.
func TestEqualFlagsShareAnInstance(t *testing.T) {
	m, flags := newModule(t), []string{rulesFlag(t), "--top-keys=10"}
	a := newTestFilter(t, m, configOf(t, flags))
	b := newTestFilter(t, m, configOf(t, []string{flags[1], flags[0]}, `"failure_mode_deny": true`))
	other := newTestFilter(t, m, configOf(t, flags[:1]))
	if a.instance != b.instance || a.instance == other.instance {
		t.Fatal("filters with equal flags have instances of their own, or others do not")
	}
	ask(t.Context(), a, nil, "ann")
	a.Close()
	ask(t.Context(), b, nil, "ann")
	if got, _ := ask(t.Context(), b, nil, "ann"); got.Outcome != OverLimit {
		t.Errorf("the counter was forgotten: %+v", got)
	}
	b.Close()
	m.Wait(proctest.Patience)
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.instances) != 1 {
		t.Errorf("%d instances are left, want that of the last filter", len(m.instances))
	}
}

func TestRedisAnswersLater(t *testing.T) {
	f := newTestFilter(t, newModule(t), configOf(t, []string{
		rulesFlag(t), "--store=" + redistest.Start(t).URL(), "--store-timeout=500ms", "--on-store-failure=deny",
	}))
	for i := range 3 {
		if a, atOnce := ask(t.Context(), f, nil, "ann"); atOnce || (a.Outcome == OverLimit) != (i == 2) {
			t.Errorf("request %d: at once %v, %+v", i, atOnce, a)
		}
	}
	// Refunds of others must be heard before a denial is cached; until then Redis is asked each time.
	until := time.Now().Add(proctest.Patience)
	for atOnce := false; !atOnce; {
		var a Answer
		if a, atOnce = ask(t.Context(), f, nil, "ann"); a.Outcome != OverLimit || time.Now().After(until) {
			t.Fatalf("a cached denial is not answered at once: %+v", a)
		}
	}
}

// A request that waits for its turn is answered later, also with memory, and ends early when its stream does.
func TestRequestsWaitForTheirTurn(t *testing.T) {
	f := newTestFilter(t, newModule(t), configOf(t, []string{rulesFlag(t)}))
	if a, atOnce := ask(t.Context(), f, nil, "slow"); !atOnce || a.Outcome != OK {
		t.Fatalf("the first: at once %v, %+v", atOnce, a)
	}
	start := time.Now()
	if a, atOnce := ask(t.Context(), f, nil, "slow"); atOnce || a.Outcome != OK || time.Since(start) < 20*time.Millisecond {
		t.Errorf("the second: at once %v after %s, %+v", atOnce, time.Since(start), a)
	}
	for range 15 {
		c := f.Call(nil)
		c.AddHeader("x-key", []byte("slow"))
		if c.Decide() {
			t.Fatalf("it need not wait: %+v", c.Answer)
		}
		ctx, cancel := context.WithCancel(t.Context())
		w := &batchedWaiter{ended: make(chan struct{})}
		c.Later(ctx, w)
		cancel()
		<-w.ended
	}
	if now := f.decider.Delayed().Now; now != 0 {
		t.Errorf("%d requests still wait", now)
	}
}

// A route without a plan panics, as a mistake in the code would.
func TestPanicFollowsTheFailureMode(t *testing.T) {
	addr := proctest.FreeAddr(t)
	flags := []string{rulesFlag(t), "--http-addr=" + addr}
	m := newModule(t)
	for deny, want := range map[string]uint32{"false": 0, "true": 503} {
		f := newTestFilter(t, m, configOf(t, flags, `"failure_mode_deny": `+deny, `"status_on_error": {"code": 503}`))
		c := f.Call(&Route{}) // without a plan
		if !c.Decide() || c.Answer.Outcome != Failed || c.Answer.Status != want {
			t.Errorf("failure_mode_deny: %s: %+v, want status %d", deny, c.Answer, want)
		}
		c.Release()
	}
	resp, err := http.Get("http://" + addr + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // only read from
	text, err := io.ReadAll(resp.Body)
	if err != nil || !strings.Contains(string(text), "weir_panics_total 2") {
		t.Errorf("the panics are not counted: %v", err)
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestConfigErrors(t *testing.T) {
	m := newModule(t)
	rules := rulesFlag(t)
	expand := strings.NewReplacer("FLAGS", `"flags": ["`+rules+`"], "domain": "shop"`, "RULES", rules)
	for _, tt := range casetest.Table[struct{ Name, Config, Route, Want string }](t, "testdata/config_errors.yaml") {
		t.Run(tt.Name+tt.Route, func(t *testing.T) {
			if tt.Route != "" {
				if _, err := ParseRoute([]byte(tt.Route)); err == nil || !strings.Contains(err.Error(), tt.Want) {
					t.Errorf("%v, want %q", err, tt.Want)
				}
				return
			}
			config := []byte(expand.Replace(tt.Config))
			_, err := m.NewFilter(config)
			if err == nil || !strings.Contains(err.Error(), tt.Want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%v, want %q", err, tt.Want)
			}
			if check := CheckFilter(config); check == nil || check.Error() != err.Error() {
				t.Errorf("CheckFilter says %v, NewFilter %v", check, err)
			}
		})
	}
	if len(m.instances) != 0 {
		t.Errorf("%d instances of configurations that were refused", len(m.instances))
	}
}

// Filters with other flags have the HTTP address, too, as in an update of a listener: whoever is left answers.
func TestHTTPAddressIsShared(t *testing.T) {
	for _, addr := range []string{proctest.FreeAddr(t), "unix:" + filepath.Join(t.TempDir(), "weir.sock")} {
		t.Run(addr, func(t *testing.T) { testSharedAddress(t, addr) })
	}
}

func testSharedAddress(t *testing.T, addr string) {
	m := newModule(t)
	transport := &http.Transport{DisableKeepAlives: true}
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}
	}
	client := &http.Client{Transport: transport}
	url := "http://" + strings.TrimPrefix(addr, "unix:") + "/metrics"
	if strings.HasPrefix(addr, "unix:") {
		url = "http://weir/metrics"
	}
	rules := rulesFlag(t)
	// The instances differ in the number of requests that they have decided.
	filter := func(requests int, flags ...string) *Filter {
		f := newTestFilter(t, m, configOf(t, append(flags, rules, "--http-addr="+addr)))
		for range requests {
			ask(t.Context(), f, nil, "ann")
		}
		return f
	}
	check := func(want ...string) {
		t.Helper()
		for range 20 {
			resp, err := client.Get(url)
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err != nil || !slices.ContainsFunc(want, func(n string) bool {
				return strings.Contains(string(text), "weir_request_seconds_count "+n)
			}) {
				t.Fatalf("another instance answers, want one with %v requests: %v", want, err)
			}
		}
	}
	first := filter(1)
	check("1")
	second := filter(2, "--top-keys=1")
	check("1", "2")
	first.Close()
	m.Wait(proctest.Patience)
	check("2")
	second.Close()
	m.Wait(proctest.Patience)
	if resp, err := client.Get(url); err == nil {
		_ = resp.Body.Close()
		t.Error("the address is still open")
	}
	filter(4)
	check("4")
}

// A filter ends at once, on a worker of Envoy, while another one waits for its first rules on the main thread.
func TestFilterEndsWhileAnotherStarts(t *testing.T) {
	m := newModule(t)
	f := newTestFilter(t, m, configOf(t, []string{rulesFlag(t)}))
	plane := partnertest.StartControlPlane(t, partnertest.ControlPlaneOptions{})
	started := make(chan error)
	go func() {
		other, err := m.NewFilter(configOf(t, []string{"--rules=xds", "--xds-server=" + plane.Addr}))
		if err == nil {
			other.Close()
		}
		started <- err
	}()
	plane.Next() // it waits for the answer
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f.Close()
	}()
	select {
	case <-ended:
	case <-time.After(proctest.Patience):
		t.Error("the filter waits for the start of another one")
	}
	plane.Set("1", partnertest.Domain("shop", partnertest.Limit("key", "", 1)))
	if err := <-started; err != nil {
		t.Error(err)
	}
	<-ended
}
