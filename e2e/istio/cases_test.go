//go:build e2e && linux

package istio

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const limited = http.StatusTooManyRequests

// statuses are those of answers.
func statuses(answers []answer) (list []int) {
	for _, a := range answers {
		list = append(list, a.Status)
	}
	return list
}

// repeat is one status several times, then another one.
func repeat(first, times, then, more int) []int {
	return append(slices.Repeat([]int{first}, times), slices.Repeat([]int{then}, more)...)
}

// awaitHeader sends requests until an answer has the rate limit header that begins like this.
func awaitHeader(t *testing.T, from *namespace, q question, limit string) (last answer) {
	t.Helper()
	await(t, func() error {
		last = from.one(t, q)
		if !strings.HasPrefix(last.Header.Get("X-Ratelimit-Limit"), limit) {
			return fmt.Errorf("no X-Ratelimit-Limit %q: %+v", limit, last)
		}
		return nil
	})
	return last
}

// perClient begins X-Ratelimit-Limit of the gateway's first limit.
const perClient = `10, 10;w=3600;name="istio-system/ingressgateway/per-client"`

// testGateway: each address has a counter of its own at the gateway, and a smaller one for logins.
func testGateway(t *testing.T, m *mesh, client *namespace) {
	const url = "http://" + gatewayIP + ":8080/"
	probe := m.namespace(t, "probe", "10.91.0.20")
	awaitHeader(t, probe, question{Method: "GET", URL: url}, perClient)

	answers := client.send(t, question{Method: "GET", URL: url, Times: 12})
	if got, want := statuses(answers), repeat(200, 10, limited, 2); !slices.Equal(got, want) {
		t.Errorf("12 requests of one address: %v, want %v", got, want)
	}
	last := answers[len(answers)-1].Header
	t.Logf("a limited request is answered %v", last)
	for name, want := range map[string]string{"X-Envoy-Ratelimited": "true", "X-Ratelimit-Remaining": "0"} {
		if got := last.Get(name); got != want {
			t.Errorf("the 429 has %s: %q, want %q", name, got, want)
		}
	}
	forged := question{Method: "GET", URL: url, Header: http.Header{"X-Forwarded-For": {"192.0.2.7"}}}
	if got := client.one(t, forged).Status; got != limited {
		t.Errorf("with a forged X-Forwarded-For: status %d, want %d", got, limited)
	}

	login := m.namespace(t, "login", "10.91.0.21")
	var got []int
	for _, path := range []string{"login", "login/", "loginx", "login;a=b", "login?x=1", "login/a", "login"} {
		got = append(got, login.one(t, question{Method: "POST", URL: url + path}).Status)
	}
	if want := repeat(200, 6, limited, 1); !slices.Equal(got, want) {
		t.Errorf("6 logins and another path: %v, want %v", got, want)
	}

	m.generate(t, m.input)
	if got := client.one(t, forged).Status; got != limited {
		t.Errorf("after the same limits were applied again: status %d, want %d", got, limited)
	}
}

// testSidecar: shop's sidecar knows the caller by its certificate.
func testSidecar(t *testing.T, m *mesh, caller, shop *pod) {
	a := awaitHeader(t, caller.namespace, m.toShop(t), `100, 100;w=1;name="shop/shop/callers"`)
	t.Logf("an admitted request is answered %v", a.Header)
	stats := shop.one(t, question{Method: "GET", URL: "http://127.0.0.1:15000/stats?filter=ratelimit"})
	if !regexp.MustCompile(`(?m)\.ratelimit\.ok: [1-9]`).MatchString(stats.Body) {
		t.Errorf("Envoy's statistics of the filter:\n%s", stats.Body)
	}
}

// toShop is a request of the mesh to the Service shop.
func (m *mesh) toShop(t *testing.T) question {
	t.Helper()
	url := "http://" + m.clusterIP(t, "shop", "shop") + "/"
	return question{Method: "GET", URL: url, Host: "shop.shop.svc.cluster.local"}
}

func (m *mesh) clusterIP(t *testing.T, namespace, service string) string {
	t.Helper()
	return m.Kubectl(t, "--namespace", namespace, "get", "service", service, "-o", "jsonpath={.spec.clusterIP}")
}

// testAccess: who may reach Weir, and who may not.
func testAccess(t *testing.T, m *mesh, client *namespace, caller *pod) {
	prometheus := m.startPod(t, "monitoring", "prometheus", "10.91.0.22")
	host := "weir.weir-system.svc.cluster.local:8080"
	url := "http://" + m.clusterIP(t, "weir-system", "weir") + ":8080"
	await(t, func() error {
		a := prometheus.one(t, question{Method: "GET", URL: url + "/metrics", Host: host})
		if a.Status != 200 || !strings.Contains(a.Body, "weir_decisions_total") {
			return fmt.Errorf("Prometheus gets %.300v", a)
		}
		return nil
	})
	for name, tc := range map[string]struct {
		from *namespace
		q    question
	}{
		"a service that may only ask":  {caller.namespace, question{Method: "GET", URL: url + "/metrics", Host: host}},
		"Prometheus, the rules":        {prometheus.namespace, question{Method: "GET", URL: url + "/rules", Host: host}},
		"Prometheus, a change":         {prometheus.namespace, question{Method: "POST", URL: url + "/reload", Host: host}},
		"Prometheus, the gRPC service": {prometheus.namespace, ask(m.clusterIP(t, "weir-system", "weir"))},
	} {
		a := tc.from.one(t, tc.q)
		const denied = "RBAC: access denied"
		if text := a.Body + a.Header.Get("Grpc-Message"); !strings.Contains(text, denied) {
			t.Errorf("%s: %+v, want %q", name, a, denied)
		}
	}
	for _, port := range []string{"8080", "8081"} {
		if a := client.one(t, question{Method: "GET", URL: "http://" + weirIP + ":" + port + "/metrics"}); a.Err == "" {
			t.Errorf("without mTLS, port %s: %+v, want no answer", port, a)
		}
	}

	// Without the policies, too, nothing from elsewhere changes state, though the sidecar passes it on from loopback.
	m.Kubectl(t, "--namespace", "weir-system", "delete", "authorizationpolicy,peerauthentication", "--all")
	defer m.apply(t, "access.yaml")
	local := question{Method: "GET", URL: "http://" + weirIP + ":8080/healthz", Host: "localhost"}
	await(t, func() error {
		if a := client.one(t, local); a.Status != 200 {
			return fmt.Errorf("without policies: %+v", a)
		}
		return nil
	})
	local.Method, local.URL = "POST", "http://"+weirIP+":8080/reload"
	if a := client.one(t, local); a.Status != http.StatusForbidden || !strings.Contains(a.Body, "--http-token-file") {
		t.Errorf("a change from elsewhere, as if from here: %+v, want 403 of Weir", a)
	}
}

// ask is a call of the rate limit service as far as a policy looks at it.
func ask(ip string) question {
	return question{
		Method: "POST", URL: "http://" + ip + ":8081/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
		Host: "weir.weir-system.svc.cluster.local:8081", Header: http.Header{"Content-Type": {"application/grpc"}},
	}
}

// socketRules are small enough to be used up.
const socketRules = `domain: shop
descriptors:
  - key: caller
    rate_limit: {name: socket, requests_per_unit: 4, unit: day}
`

// testSocket: Weir in the pod of the service, asked by a Unix socket.
func testSocket(t *testing.T, m *mesh, caller *pod) {
	m.Kubectl(t, "--namespace", "shop", "delete", "envoyfilter", "weir-shop")
	m.apply(t, "socket/shop.yaml", "socket/envoyfilter.yaml")
	m.Kubectl(t, "--namespace", "shop", "patch", "configmap", "weir-rules", "--type=merge", "--patch",
		fmt.Sprintf(`{"data": {"callers.yaml": %q}}`, socketRules))
	const ip = "10.91.0.24"
	shop := m.createPod(t, "shop", "shop", ip, "shop-socket")
	if path := shop.mount(t, "istio-proxy", "weir"); path != "/run/weir" {
		t.Errorf("istio-proxy has the socket's volume at %q", path)
	}
	run(t, "install", "-d", "-o", "0", "-g", strconv.Itoa(proxyUser), "-m", "2775", "/run/weir") // as fsGroup makes it
	shop.namespace = m.namespace(t, "shop-socket", ip)
	shop.runWeir(t, m)
	m.runProxy(t, shop)
	shop.serve(t)
	m.endpoints(t, "shop", "shop", ip, map[string]int{"http": 8080})
	awaitHeader(t, caller.namespace, m.toShop(t), `4, 4;w=86400;name="socket"`)
	q := m.toShop(t)
	q.Times = 4
	if got, want := statuses(caller.send(t, q)), repeat(200, 3, limited, 1); !slices.Equal(got, want) {
		t.Errorf("4 further requests of the caller: %v, want %v", got, want)
	}
	// The probe that Kubernetes runs in the container.
	c := shop.container(t, "weir")
	var probe []string
	for _, word := range list(c, "startupProbe", "exec", "command") {
		probe = append(probe, text(word))
	}
	if out, err := shop.command(weirUser, weirUser, "/", nil, m.weir, probe[1:]...).CombinedOutput(); err != nil {
		t.Errorf("startup probe: %v\n%s", err, out)
	}
	status := shop.command(weirUser, weirUser, "/", nil, m.weir, "status", "--server", "http://127.0.0.1:8090")
	if out, err := status.CombinedOutput(); err != nil || !strings.Contains(string(out), "ready") {
		t.Errorf("weir status: %v\n%s", err, out)
	}
}

// mount is where a container has a volume.
func (p *pod) mount(t *testing.T, container, volume string) string {
	t.Helper()
	mounts, _ := p.container(t, container)["volumeMounts"].([]any)
	for _, mount := range mounts {
		if text(mount, "name") == volume {
			return text(mount, "mountPath")
		}
	}
	return ""
}

// testTemplate: the injection template adds Weir to a pod with the annotation.
func testTemplate(t *testing.T, m *mesh) {
	for _, native := range []string{"true", "false"} {
		var made object
		manifest := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "templated", "namespace": "shop",
			"annotations": {"inject.istio.io/templates": "sidecar,weir", "sidecar.istio.io/nativeSidecar": %q}},
			"spec": {"serviceAccountName": "shop", "containers": [{"name": "app", "image": "localhost/app"}]}}`, native)
		out, err := m.Try(manifest, "create", "--dry-run=server", "-o", "json", "-f", "-")
		if err != nil {
			t.Fatal(err)
		}
		made = objects(t, out)[0]
		p := &pod{spec: child(made, "spec"), meta: child(made, "metadata")}
		for _, name := range []string{"istio-proxy", "weir"} {
			if path := p.mount(t, name, "weir"); path != "/run/weir" {
				t.Errorf("native sidecars %s: %s has the socket's volume at %q", native, name, path)
			}
		}
		if image := text(p.container(t, "istio-proxy"), "image"); image == "" {
			t.Errorf("native sidecars %s: istio-proxy has no image", native)
		}
	}
}

// accepts: the API server takes every file, strictly.
func (m *mesh) accepts(t *testing.T) {
	t.Helper()
	for _, name := range []string{"shop", "weir-system"} {
		m.Kubectl(t, "create", "namespace", name)
	}
	for _, file := range manifests {
		out, err := m.DryRun(read(t, file))
		if err != nil {
			t.Errorf("%s: %v", file, err)
		}
		t.Logf("%s:\n%s", file, out)
	}
	broken := strings.Replace(read(t, "socket/envoyfilter.yaml"), "workloadSelector:", "workloadSelectors:", 1)
	if _, err := m.DryRun(broken); err == nil || !strings.Contains(err.Error(), `unknown field "spec.workloadSelectors"`) {
		t.Errorf("a misspelled field: %v, want an error that names it", err)
	}
}

// manifests are the files of deploy/istio that kubectl applies.
var manifests = []string{
	"weir.yaml", "access.yaml", "shop.yaml", "socket/shop.yaml", "socket/envoyfilter.yaml",
}

// analyzes: istioctl has one warning per EnvoyFilter, which is about EnvoyFilters as such. Unknown fields of a patch,
// which istiod ignores, would be in the same warning.
func (m *mesh) analyzes(t *testing.T) {
	t.Helper()
	const general = "Schema validation warning: EnvoyFilter exposes internal implementation details that may change at any " +
		"time. Prefer other APIs if possible, and exercise extreme caution, especially around upgrades."
	out := run(t, tool("istioctl"), "analyze", "--kubeconfig", m.Kubeconfig, "--all-namespaces",
		"--failure-threshold", "Error")
	filters := 0
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "Warning [IST0133] (EnvoyFilter ") && strings.HasSuffix(line, ") "+general):
			filters++
		case strings.HasPrefix(line, "Warning"), strings.HasPrefix(line, "Error"):
			t.Errorf("istioctl analyze: %s", line)
		}
	}
	if names := m.Kubectl(t, "get", "envoyfilter", "-A", "-o", "name"); filters == 0 || filters != strings.Count(names, "\n") {
		t.Errorf("istioctl analyze warns of %d filters, want these:\n%s", filters, names)
	}
}
