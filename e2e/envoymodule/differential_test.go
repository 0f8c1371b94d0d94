//go:build e2e

package envoymodule

import (
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// settings are words that Envoy's filter and the module have alike. Each has a listener with Envoy's filter, and one
// with the module.
var settings = []string{
	`"failure_mode_deny": true`,
	`"enable_x_ratelimit_headers": "DRAFT_VERSION_03"`,
	`"enable_x_ratelimit_headers": "DRAFT_VERSION_03", "disable_x_envoy_ratelimited_header": true,
	 "rate_limited_status": {"code": 503}, "failure_mode_deny": true, "status_on_error": {"code": 504}`,
	`"enable_x_ratelimit_headers": "OFF", "rate_limited_status": {"code": 302}, "status_on_error": {"code": 505}`,
}

// twins are an Envoy with its own filter that asks a Weir, and with the module, each with the same rules and with
// counters of its own.
type twins struct {
	envoy            *proctest.Envoy
	service          *proctest.Weir
	module           string // the HTTP address of the Weir in Envoy
	byFilter, inside []*client
}

// startTwins runs twins. The routes of listener i are routes(i), with the configuration of a route that perRoute makes
// for either filter. change changes each listener.
func startTwins(
	t *testing.T, rulesFlag string, serviceFlags, moduleFlags []string,
	routes func(front int, perRoute func(domain, rateLimits string) string) string,
	change ...func(name, listener string) string,
) *twins {
	t.Helper()
	service := proctest.NewWeir(t, append([]string{rulesFlag}, serviceFlags...)...)
	service.Start()
	w := &twins{service: service, module: proctest.FreeAddr(t)}
	flags := append([]string{rulesFlag, "--http-addr=" + w.module}, moduleFlags...)
	var listeners []string
	add := func(name, filter, routes string) {
		l := listener(name, []string{filter}, routes)
		for _, f := range change {
			l = f(name, l)
		}
		listeners = append(listeners, l)
	}
	for i, words := range settings {
		filter := `{name: envoy.filters.http.ratelimit, typed_config: {` +
			`"@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit, domain: shop, timeout: 20s,
			rate_limit_service: {transport_api_version: V3, grpc_service: {envoy_grpc: {cluster_name: weir}}}, ` + words + `}}`
		add(fmt.Sprintf("filter%d", i), filter, routes(i, func(domain, rateLimits string) string {
			return `{envoy.filters.http.ratelimit: {` +
				`"@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute, domain: ` + domain +
				`, rate_limits: ` + rateLimits + `}}`
		}))
		add(fmt.Sprintf("inside%d", i), moduleFilter(config(flags, "", words)),
			routes(i, func(domain, rateLimits string) string {
				return moduleRoute(`{"domain": "` + domain + `", "rate_limits": ` + rateLimits + `}`)
			}))
	}
	const http2 = `typed_extension_protocol_options: {envoy.extensions.upstreams.http.v3.HttpProtocolOptions: {
		"@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions,
		explicit_http_config: {http2_protocol_options: {}}}}`
	clusters := []string{cluster("upstream", headersUpstream(t)), cluster("weir", service.GRPC, http2)}
	w.envoy = proctest.StartEnvoyWith(t, bootstrap(listeners, clusters), proctest.EnvoyOptions{
		Workers: 2, Modules: moduleFolder(t), Args: []string{"--file-flush-interval-msec", "50"},
	})
	for i := range settings {
		w.byFilter = append(w.byFilter, newClient(t, w.envoy, fmt.Sprintf("filter%d", i)))
		w.inside = append(w.inside, newClient(t, w.envoy, fmt.Sprintf("inside%d", i)))
	}
	return w
}

// headersUpstream answers every request with 200 and a header that rules have in their responses, and a request with
// the header x-limits with headers of limits, too.
func headersUpstream(t *testing.T) string {
	t.Helper()
	return serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Upstream", "yes")
		w.Header().Set("X-Used", r.Header.Get("X-Cost"))
		if r.Header.Get("X-Limits") != "" {
			w.Header().Set("X-RateLimit-Limit", "12345")
			w.Header().Set("Retry-After", "54321")
		}
		_, _ = io.WriteString(w, "upstream")
	})
}

// TestAnswersAsTheService draws rules, rate_limits and requests. A request gets the same answer from Envoy's filter
// with a Weir as a service as from a Weir inside Envoy, to the second, and leaves the same counters, also after the
// store has gone.
func TestAnswersAsTheService(t *testing.T) {
	kinds := []string{"passed", "denied", "X-Ratelimit-Limit", "Retry-After", "X-Rule", "Grpc-Status"}
	t.Run("memory", func(t *testing.T) {
		cases := drawCases(t, casetest.Pick(40, 60), drawCase)
		w := startTwinsWith(t, cases, []string{"--store=memory"}, []string{"--store=memory"}, "")
		w.playAll(t, cases, func() {}, kinds...)
		w.compareCounts(t)
	})
	t.Run("redis", func(t *testing.T) {
		cases := drawCases(t, 80, drawCase)
		for i := range cases {
			cases[i].reverse() // others than in memory
		}
		a, b := redistest.Start(t), redistest.Start(t)
		// All headers of limits; and a busy machine must not turn requests into failures.
		flags := []string{"--ratelimit-headers", "--store-timeout=5s"}
		w := startTwinsWith(t, cases, append(flags, "--store="+a.URL()), append(flags, "--store="+b.URL()), "")
		w.playAll(t, cases, func() {}, kinds...)
		w.compareCounts(t)
		if n := compareKeys(t, a, b); n < 100 {
			t.Errorf("%d keys in Redis: too few to tell", n)
		}
		a.Kill()
		b.Kill()
		w.playAll(t, cases, func() {}, kinds...) // cached denials first, and then each limit's on_store_failure
		w.compareCounts(t)
	})
}

// reverse changes the order of a case's requests.
func (c *drawnCase) reverse() { slices.Reverse(c.requests) }

// startTwinsWith runs twins with a route for each case. rest is further fields of each route.
func startTwinsWith(
	t *testing.T, cases []*drawnCase, service, module []string, rest string, change ...func(name, listener string) string,
) *twins {
	t.Helper()
	var documents []string
	for _, c := range cases {
		documents = append(documents, c.rules)
	}
	return startTwins(t, rules(t, strings.Join(documents, "\n---\n")), service, module,
		func(front int, perRoute func(domain, rateLimits string) string) string {
			var routes []string
			for _, c := range cases {
				if c.front == front {
					routes = append(routes, fmt.Sprintf("{match: {prefix: /%d/}, route: {cluster: upstream}, typed_per_filter_config: %s%s}",
						c.number, perRoute(c.domain(), c.rateLimits), rest))
				}
			}
			return strings.Join(append(routes, toUpstream), ", ")
		}, change...)
}

// playAll sends all requests to both, and compares the answers. After each request it calls sent. There must be some
// answers of each of the kinds.
func (w *twins) playAll(t *testing.T, cases []*drawnCase, sent func(), kinds ...string) {
	t.Helper()
	seen := map[string]int{}
	for _, c := range cases {
		for i, r := range c.requests {
			want, got := w.byFilter[c.front].send(t, r), w.inside[c.front].send(t, r)
			sent()
			if wrong := unlike(want, got); wrong != "" {
				t.Fatalf("request %d, %+v: %s\nfilter: %s\nmodule: %s\nsettings: %s\nrate_limits: %s\nrules: %s", i, r, wrong,
					show(want), show(got), settings[c.front], c.rateLimits, c.rules)
			}
			count(seen, want)
		}
	}
	t.Logf("%v", seen)
	for _, kind := range kinds {
		if seen[kind] < 5 {
			t.Errorf("%d of %s: too few to tell", seen[kind], kind)
		}
	}
}

// count counts what kind of an answer it is.
func count(seen map[string]int, r proctest.Response) {
	seen["requests"]++
	if r.Header.Get("X-Envoy-Upstream-Service-Time") != "" {
		seen["passed"]++
	} else {
		seen["denied"]++
	}
	for _, name := range []string{
		"X-Ratelimit-Limit", "Retry-After", "X-Rule", "Grpc-Status", "X-Leased", "X-Owner",
	} {
		if v := r.Header.Get(name); v != "" && v != "-" {
			seen[name]++
		}
	}
	seen[fmt.Sprint("status ", r.Status)]++
}

// send sends a drawn request.
func (c *client) send(t *testing.T, r drawnRequest) proctest.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), r.method, c.URL+r.path, strings.NewReader(r.body))
	if err != nil {
		t.Fatal(err)
	}
	if r.body == "" {
		req.Body = http.NoBody
	}
	for _, h := range r.headers {
		req.Header.Add(h[0], h[1])
	}
	got, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// A Retry-After and a reset are whole seconds from now. The second of the two answers is a moment later, on a busy
// machine a few seconds.
const laterBy = 5

// unlike says how an answer differs from that of Envoy's filter.
func unlike(want, got proctest.Response) string {
	if want.Status != got.Status {
		return fmt.Sprintf("status %d, want %d", got.Status, want.Status)
	}
	if want.Body != got.Body {
		return fmt.Sprintf("body %q, want %q", got.Body, want.Body)
	}
	names := slices.Collect(maps.Keys(want.Header))
	for name := range got.Header {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, name := range names {
		a, b := want.Header.Values(name), got.Header.Values(name)
		switch name {
		case "Date", "X-Envoy-Upstream-Service-Time":
			if len(a) != len(b) {
				return fmt.Sprintf("%s: %q, want %q", name, b, a)
			}
		case "Retry-After", "X-Ratelimit-Reset", "Ratelimit-Reset":
			if !slices.EqualFunc(a, b, sameSeconds) {
				return fmt.Sprintf("%s: %q, want about %q", name, b, a)
			}
		default:
			if !slices.Equal(a, b) {
				return fmt.Sprintf("%s: %q, want %q", name, b, a)
			}
		}
	}
	return ""
}

func sameSeconds(a, b string) bool {
	x, errX := strconv.Atoi(a)
	y, errY := strconv.Atoi(b)
	return a == b || errX == nil && errY == nil && x-y >= -1 && x-y <= laterBy
}

func show(r proctest.Response) string { return fmt.Sprintf("%d %q %v", r.Status, r.Body, r.Header) }

// compareCounts compares what both have counted: Envoy's statistics of decisions, and Weir's metrics of limits.
func (w *twins) compareCounts(t *testing.T) {
	t.Helper()
	for _, name := range []string{"ok", "over_limit", "error", "failure_mode_allowed"} {
		want, got := w.envoy.Stat("cluster.upstream.ratelimit."+name), w.envoy.Stat("dynamicmodulescustom."+name)
		if want != got {
			t.Errorf("Envoy counts %d times %s of the module, and %d of its filter", got, name, want)
		}
	}
	want, got := metrics(t, w.service.HTTP), metrics(t, w.module)
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("the module has %s, and the service does not", name)
		}
	}
	for name, value := range want {
		if got[name] != value {
			t.Errorf("the module says %s %q, and the service %q", name, got[name], value)
		}
	}
	if len(want) < 50 {
		t.Errorf("%d metrics: too few to tell", len(want))
	}
}

// metrics are the counters of decisions, and of their reasons, by name and labels. Errors of the store are counted
// together: whether one more is asked before the breaker opens is a matter of microseconds.
func metrics(t *testing.T, addr string) map[string]string {
	t.Helper()
	const storeErrors = "weir_store_errors_total"
	all, errs := map[string]string{}, 0
	for line := range strings.Lines(getPage(t, "http://"+addr+"/metrics")) {
		line = strings.TrimSpace(line)
		for _, prefix := range []string{
			"weir_decisions_total", "weir_hits_", "weir_cached_denials_total", "weir_requests_", "weir_request_seconds_count",
			storeErrors, "weir_rules_limits", "weir_panics_total",
		} {
			at := strings.LastIndexByte(line, ' ')
			if !strings.HasPrefix(line, prefix) || at <= 0 {
				continue
			}
			if prefix != storeErrors {
				all[line[:at]] = line[at+1:]
				continue
			}
			n, err := strconv.Atoi(line[at+1:])
			if err != nil {
				t.Fatal(err)
			}
			errs += n
		}
	}
	all[storeErrors] = strconv.Itoa(errs)
	return all
}

// compareKeys compares all keys of two Redis servers, and returns how many there are.
func compareKeys(t *testing.T, a, b *redistest.Server) int {
	t.Helper()
	want, got := contents(t, a), contents(t, b)
	for key := range got {
		if _, ok := want[key]; !ok {
			t.Errorf("the module has a key %s, and the service does not", key)
		}
	}
	for key, value := range want {
		other, ok := got[key]
		if !ok {
			t.Errorf("the service has a key %s, and the module does not", key)
		} else if wrong := unlikeCounter(key, value, other); wrong != "" {
			t.Errorf("%s: %s (- service, + module)\n- %v, expires in %s\n+ %v, expires in %s", key, wrong, numbers(value.state),
				value.expires, numbers(other.state), other.expires)
		}
	}
	return len(want)
}

type counter struct {
	state   string
	expires time.Duration
}

func contents(t *testing.T, s *redistest.Server) map[string]counter {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: s.Addr(), Protocol: 2, DisableIdentity: true})
	defer c.Close() //nolint:errcheck // only read from
	keys, err := c.Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]counter{}
	for _, key := range keys {
		state, err := c.Get(t.Context(), key).Result()
		if err != nil {
			t.Fatal(err)
		}
		expires, err := c.PTTL(t.Context(), key).Result()
		if err != nil {
			t.Fatal(err)
		}
		all[key] = counter{state, expires}
	}
	return all
}

// numbers are those of a state, which docs/reference/redis-keys.md has: doubles, and in a sliding window integers of 4
// bytes after the third.
func numbers(state string) (all []float64) {
	for len(state) >= 8 {
		all = append(all, math.Float64frombits(binary.BigEndian.Uint64([]byte(state))))
		state = state[8:]
	}
	return all
}

// unlikeCounter says how a counter differs from the service's. Counts are the same; times differ by the moment
// between the two requests. A hit is worth minutes.
func unlikeCounter(key string, want, got counter) string {
	const moment = laterBy * time.Second
	if d := want.expires - got.expires; d < -moment || d > moment || (want.expires < 0) != (got.expires < 0) {
		return "another expiry"
	}
	if len(want.state) != len(got.state) {
		return "another length"
	}
	if strings.Contains(key, ":sliding_window") { // a fixed window may begin with its first hit
		if want.state != got.state {
			return "another state of a window"
		}
		return ""
	}
	const smallest = 1e9 // of times in microseconds, which are a quarter of an hour at least
	a, b := numbers(want.state), numbers(got.state)
	for i := range a {
		if d := math.Abs(a[i] - b[i]); d > 0 && (math.Abs(a[i]) < smallest || d > float64(moment.Microseconds())) {
			return fmt.Sprintf("number %d differs", i)
		}
	}
	return ""
}
