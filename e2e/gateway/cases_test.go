//go:build e2e

package gateway

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/podtest"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// world is everything that runs.
type world struct {
	cluster *cluster
	service container // the rate limit service's
}

type headers = map[string]string

// runCases applies the policies, and sends requests through Envoy. The cases that stop something come last.
func runCases(t *testing.T, w *world) {
	var manifests []string
	for _, c := range cases {
		manifests = append(manifests, c.manifest())
	}
	w.cluster.Apply(t, strings.Join(manifests, "\n---\n"))
	for _, c := range cases {
		w.await(t, c)
	}
	proctest.Await(t, patience, func() error {
		if status, header := send(t, "/distinct", headers{"X-User-Id": "zero"}); status != passed {
			return fmt.Errorf("Envoy does not reach the service: status %d, %v", status, header)
		}
		return nil
	})
	for _, tt := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"a counter for each value of a header", w.distinct},
		{"method, path, query and headers", w.combined},
		{"source addresses", w.addresses},
		{"cost of a request from metadata", w.costs},
		{"usage at the end of the stream on three limits", w.usages},
		{"limit from metadata", w.plans},
		{"shadow mode", w.shadow},
		{"one limit for two routes", w.shared},
		{"no requests at all", w.nothing},
		{"the policy of deploy/envoy-gateway", w.policyFile},
		{"rules of files, by an EnvoyPatchPolicy", w.patchFile},
		{"probes", w.probes},
		{"metrics", w.metrics},
		{"a policy is edited", w.edited},
		{"the gateway restarts", w.restarted},
		{"one bad rule", w.badRule},
		{"Redis is away", w.redisAway},
	} {
		t.Run(tt.name, tt.run)
	}
}

// startBackend serves what Envoy forwards. It says what a request used, as the request wishes.
func startBackend(t *testing.T) {
	t.Helper()
	listener, err := net.Listen("tcp", hostIP+":8000")
	if err != nil {
		t.Fatal(err)
	}
	server := http.Server{ReadHeaderTimeout: patience, Protocols: new(http.Protocols)}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true) // for a GRPCRoute
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if used := r.Header.Get("X-Use"); used != "" {
			w.Header().Set("X-Usage", used)
		}
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
}

// await waits until the service has the case's rules and Envoy its routes.
func (w *world) await(t *testing.T, c rateLimitCase) {
	t.Helper()
	const dump = "http://" + proxyIP + ":19000/config_dump?resource=dynamic_route_configs"
	wants := []string{"default/" + c.name + "/rule/"}
	if c.routes == nil {
		wants = []string{"httproute/default/" + c.name + "/rule/"}
	}
	for _, want := range wants {
		proctest.Await(t, patience, func() error {
			if _, _, rules, err := request(http.MethodGet, "http://"+weirIP+":6070/rlconfig", nil); err != nil {
				return err
			} else if !strings.Contains(rules, want) {
				return fmt.Errorf("the service has no rules of %s:\n%s", want, rules)
			}
			_, _, routes, err := request(http.MethodGet, dump, nil)
			if err == nil && !strings.Contains(routes, `"descriptor_value": "`+want) {
				err = fmt.Errorf("Envoy has no rate limit of %s", want)
			}
			return err
		})
	}
}

// send sends a request through Envoy.
func send(t *testing.T, path string, with headers) (status int, header http.Header) {
	t.Helper()
	status, header, _, err := request(http.MethodGet, "http://"+proxyIP+":8888"+path, with)
	if err != nil {
		t.Fatal(err)
	}
	return status, header
}

// expect sends a request for each status.
func expect(t *testing.T, path string, with headers, want ...int) {
	t.Helper()
	for i, want := range want {
		if status, header := send(t, path, with); status != want {
			t.Errorf("%s %v, request %d: status %d, want %d: %v", path, with, i+1, status, want, header)
		}
	}
}

const passed, denied = http.StatusOK, http.StatusTooManyRequests

func (w *world) distinct(t *testing.T) {
	hour := time.Now().Truncate(time.Hour)
	for i, want := range []struct {
		status    int
		remaining string
	}{{passed, "2"}, {passed, "1"}, {passed, "0"}, {denied, "0"}} {
		status, header := send(t, "/distinct", headers{"X-User-Id": "one"})
		limit, remaining := header.Get("X-Ratelimit-Limit"), header.Get("X-Ratelimit-Remaining")
		if !time.Now().Truncate(time.Hour).Equal(hour) {
			t.Skip("the hour ended meanwhile")
		}
		if status != want.status || limit != "3, 3;w=3600" || remaining != want.remaining {
			t.Errorf("request %d: status %d, limit %q, remaining %q", i+1, status, limit, remaining)
		}
	}
	expect(t, "/distinct", headers{"X-User-Id": "two"}, passed)
	expect(t, "/distinct", nil, passed, passed, passed, passed)
}

func (w *world) combined(t *testing.T) {
	const url = "http://" + proxyIP + ":8888/combined/orders"
	for i, tt := range []struct {
		method, url, org string
		want             int
	}{
		{http.MethodPost, url + "?q=1", "acme", passed},
		{http.MethodPost, url + "?q=1", "other", passed},
		{http.MethodPost, url + "?q=2", "acme", passed},
		{http.MethodGet, url + "?q=1", "acme", passed},
		{http.MethodPost, url + "?q=1", "ajax", denied},
	} {
		status, header, _, err := request(tt.method, tt.url, headers{"X-Org": tt.org})
		if err != nil || status != tt.want {
			t.Errorf("request %d: status %d, want %d: %v %v", i+1, status, tt.want, header, err)
		}
	}
}

func (w *world) addresses(t *testing.T) {
	from := func(address string) headers { return headers{"X-Forwarded-For": address} }
	expect(t, "/cidr", from("198.51.100.1"), passed, passed)
	expect(t, "/cidr", from("198.51.100.2"), denied)
	expect(t, "/cidr", from("203.0.113.1"), passed, passed, passed)

	expect(t, "/inverted", from("192.0.2.1"), passed, passed, passed)
	expect(t, "/inverted", from("198.51.100.1"), passed, passed, denied)
	expect(t, "/inverted", from("192.0.2.1"), passed)

	expect(t, "/address", from("203.0.113.1"), passed, denied)
	expect(t, "/address", from("203.0.113.2"), passed, denied)
	expect(t, "/address", from("192.0.2.1"), passed, passed)
}

func (w *world) costs(t *testing.T) {
	expect(t, "/cost", headers{"X-Cost": "4"}, passed, passed)
	expect(t, "/cost", headers{"X-Cost": "4"}, denied)
	expect(t, "/cost", headers{"X-Cost": "0"}, denied) // the denied request was counted, too
}

// Three limits are charged when a stream ends. The team's is over after two streams, and the others must still be
// charged by the second one: a third stream of another team makes the user's budget of 25 go over.
func (w *world) usages(t *testing.T) {
	use := func(team string) headers { return headers{"X-User-Id": "u", "X-Team": team, "X-Use": "10"} }
	remaining := func(team, want string) {
		t.Helper()
		// The cost arrives after the response: look until it is there.
		proctest.Await(t, patience, func() error {
			_, header := send(t, "/usage", headers{"X-User-Id": "u", "X-Team": team})
			if got := header.Get("X-Ratelimit-Remaining"); got != want {
				return fmt.Errorf("remaining %q, want %q", got, want)
			}
			return nil
		})
	}
	expect(t, "/usage", use("red"), passed)
	remaining("red", "5")
	expect(t, "/usage", use("red"), passed)
	remaining("red", "0")
	expect(t, "/usage", use("red"), denied)
	remaining("blue", "5") // of the user: 25 - 20
	expect(t, "/usage", use("blue"), passed)
	remaining("green", "0")
	expect(t, "/usage", use("green"), denied)
	expect(t, "/usage", headers{"X-User-Id": "v", "X-Team": "green"}, passed)
}

// A tenant's limit that changes keeps what is counted already.
func (w *world) plans(t *testing.T) {
	plan := func(requests string) headers { return headers{"X-User-Id": "p", "X-Plan": requests} }
	expect(t, "/plan", plan("4"), passed, passed, passed, passed, denied)
	expect(t, "/plan", plan("6"), passed, denied)
	expect(t, "/plan", headers{"X-User-Id": "q"}, passed, passed, denied)
}

func (w *world) shadow(t *testing.T) { expect(t, "/shadow", nil, passed, passed, passed) }

func (w *world) shared(t *testing.T) {
	with := headers{"X-User-Id": "s"}
	expect(t, "/shared-a", with, passed, passed)
	expect(t, "/shared-b", with, passed, denied)
	expect(t, "/shared-a", with, denied)
	expect(t, "/shared-b", headers{"X-User-Id": "t"}, passed)
}

func (w *world) nothing(t *testing.T) { expect(t, "/nothing", nil, denied, denied) }

func (w *world) probes(t *testing.T) {
	for name, p := range map[string]probe{
		"startup": w.service.StartupProbe, "readiness": w.service.ReadinessProbe, "liveness": w.service.LivenessProbe,
	} {
		if err := ok(p.url(weirIP)); err != nil {
			t.Errorf("%s probe: %v", name, err)
		}
	}
}

// metrics looks for the counters that the gateway's own tests and dashboards ask for.
func (w *world) metrics(t *testing.T) {
	proctest.Await(t, patience, func() error {
		_, _, body, err := request(http.MethodGet, "http://"+weirIP+":19001/metrics", nil)
		if err != nil {
			return err
		}
		for _, want := range []string{
			"ratelimit_service_rate_limit_over_limit key2=masked_remote_address_198_51_100_0/24 1",
			"ratelimit_service_rate_limit_over_limit key2=masked_remote_address_invert_192_0_2_0/24 1",
			"ratelimit_service_rate_limit_shadow_mode domain=default/eg/http 2",
			"ratelimit_service_total_requests grpc_method=ShouldRateLimit",
			"ratelimit_service_config_load_success",
		} {
			if !hasSample(body, strings.Fields(want)) {
				err = errors.Join(err, fmt.Errorf("no sample %s", want))
			}
		}
		if err != nil {
			err = fmt.Errorf("%w:\n%s", err, body)
		}
		return err
	})
}

// hasSample reports whether a line has the metric, a label and a value. Label and value may be left out.
func hasSample(body string, want []string) bool {
	for line := range strings.Lines(body) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		name, labels, _ := strings.Cut(series, "{")
		if name != want[0] {
			continue
		}
		if len(want) > 1 {
			key, text, _ := strings.Cut(want[1], "=")
			if !strings.Contains(","+labels, ","+key+`="`+text+`"`) {
				continue
			}
		}
		if len(want) < 3 || value == want[2] {
			return true
		}
	}
	return false
}

// edit changes the limit of the case "distinct", and waits until a new user sees it.
func (w *world) edit(t *testing.T, requests int) {
	t.Helper()
	c := cases[0]
	c.rules = strings.Replace(c.rules, "requests: 3", fmt.Sprintf("requests: %d", requests), 1)
	w.cluster.Apply(t, c.manifest())
	want := fmt.Sprintf("%[1]d, %[1]d;w=3600", requests)
	proctest.Await(t, patience, func() error {
		_, header := send(t, "/distinct", headers{"X-User-Id": fmt.Sprint("editor", requests)})
		if got := header.Get("X-Ratelimit-Limit"); got != want {
			return fmt.Errorf("X-Ratelimit-Limit: %q, want %q", got, want)
		}
		return nil
	})
}

func (w *world) edited(t *testing.T) {
	w.edit(t, 1000)
	w.edit(t, 4)
	expect(t, "/distinct", headers{"X-User-Id": "three"}, passed, passed, passed, passed, denied)
}

// While the gateway is away the rules stay; when it is back, its versions begin again at 1.
func (w *world) restarted(t *testing.T) {
	w.cluster.stopGateway(t)
	expect(t, "/distinct", headers{"X-User-Id": "four"}, passed, passed, passed, passed, denied)
	w.cluster.startGateway(t)
	w.edit(t, 1001)
	w.edit(t, 5)
	expect(t, "/distinct", headers{"X-User-Id": "five"}, passed, passed, passed, passed, passed, denied)
}

// A rule set that envoyproxy/ratelimit refuses: here all of its limits hold, and edits of others take effect.
func (w *world) badRule(t *testing.T) {
	if peer {
		t.Skip("envoyproxy/ratelimit refuses the whole set")
	}
	w.cluster.Apply(t, twice.manifest())
	w.await(t, twice)
	from := func(address string) headers { return headers{"X-Forwarded-For": address} }
	expect(t, "/twice", from("198.51.100.1"), passed, passed, passed, denied)
	expect(t, "/twice", from("198.51.100.2"), passed, denied) // five of all addresses
	expect(t, "/distinct", headers{"X-User-Id": "six"}, passed, passed, passed, passed, passed, denied)
	w.edit(t, 1002)
	w.edit(t, 2)
	expect(t, "/distinct", headers{"X-User-Id": "seven"}, passed, passed, denied)
	expect(t, "/nothing", nil, denied)
	w.cluster.Kubectl(t, "delete", "backendtrafficpolicy", "twice")
	w.edit(t, 1003)
}

// Without Redis the policy failClosed decides, since the service answers with an error; the pod stays alive.
func (w *world) redisAway(t *testing.T) {
	podtest.Command(t, "podman", "stop", "--time", "1", "redis")
	proctest.Await(t, patience, func() error { // until Weir knows: the first requests may be counted as late
		if status, header := send(t, "/distinct", headers{"X-User-Id": "eight"}); status != http.StatusInternalServerError {
			return fmt.Errorf("Redis is away: status %d, %v", status, header)
		}
		return nil
	})
	expect(t, "/distinct", headers{"X-User-Id": "eight"}, http.StatusInternalServerError, http.StatusInternalServerError)
	if err := ok(w.service.LivenessProbe.url(weirIP)); err != nil {
		t.Errorf("liveness probe without Redis: %v", err)
	}
	podtest.Command(t, "podman", "start", "redis")
	proctest.Await(t, patience, func() error {
		if status, header := send(t, "/distinct", headers{"X-User-Id": "nine"}); status != passed {
			return fmt.Errorf("Redis is back: status %d, %v", status, header)
		}
		return nil
	})
}
