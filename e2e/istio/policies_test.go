//go:build e2e && linux

package istio

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weir-ratelimit/weir/internal/test/podtest"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// policies are the policies with their Gateways and routes, and requests.txt with the answers that Envoy Gateway gives.
const policies = root + "/internal/istio/testdata/policies/"

// testNames compares all routes of the ingress gateway with testdata/names.txt, and requests with those of its policy.
func testNames(t *testing.T, m *mesh, gateway *pod) {
	cert, key := proctest.NewAuthority(t).Issue("names", "DNS:*.example.com")
	manifest := testdata(t, "names.yaml")
	m.applyObjects(t, manifest)
	m.Kubectl(t, "--namespace", "istio-system", "create", "secret", "tls", "names", "--cert", cert, "--key", key)
	m.generate(t, m.input+"---\n"+manifest)
	gateway.awaitRoutes(t, strings.Split(strings.TrimSpace(testdata(t, "names.txt")), "\n"))
	client := m.namespace(t, "names", "10.91.0.32")
	for i, tc := range []struct {
		path, host, origin string
		want               int
		allow              string
	}{
		{"/a", "named.example.com", "https://x.example.com", 200, "https://x.example.com"},
		{"/a", "named.example.com", "", limited, ""},
		{"/c", "named.example.com", "", 200, ""},
		{"/fault", "named.example.com", "", http.StatusTeapot, ""},
		{"/", "y.example.com", "", 200, ""},
		{"/", "z.example.com", "", limited, ""}, // one virtual host, so one counter
	} {
		url := "http://" + gatewayIP + ":8080" + tc.path
		a := client.one(t, question{Method: "GET", URL: url, Host: tc.host, Header: http.Header{"Origin": {tc.origin}}})
		if allow := a.Header.Get("Access-Control-Allow-Origin"); a.Status != tc.want || allow != tc.allow {
			t.Errorf("request %d: %+v, want status %d, origin %q", i, a, tc.want, tc.allow)
		}
	}
}

// applyObjects applies objects, except policies, whose type is not in this cluster.
func (m *mesh) applyObjects(t *testing.T, text string) {
	t.Helper()
	var others []string
	for _, o := range objects(t, text) {
		if o["kind"] == "BackendTrafficPolicy" {
			continue
		}
		if spec := child(o, "spec"); o["kind"] == "Gateway" && spec["gatewayClassName"] != nil {
			const trust = `{"gatewayTopology": {"numTrustedProxies": 1}}`
			spec["infrastructure"] = object{"annotations": object{"proxy.istio.io/config": trust}}
		}
		encoded, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		others = append(others, string(encoded))
	}
	m.Apply(t, strings.Join(others, "---\n"))
}

// testPolicies generates filters from policies: istiod must make the routes of requests.txt, and every request must get
// its status. Each policy has a Gateway in a namespace of its own.
func testPolicies(t *testing.T, m *mesh) {
	files, err := filepath.Glob(policies + "*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	gateways := strings.Split(readPath(t, policies+"requests.txt"), "\ngateway ")[1:]
	var input strings.Builder
	for _, file := range files {
		input.WriteString("---\n" + readPath(t, file))
	}
	manifest := testdata(t, "unseen.yaml")
	for _, gateway := range gateways {
		namespace, _, _ := strings.Cut(gateway, "\n")
		manifest = strings.ReplaceAll(testdata(t, "web.yaml"), "NAMESPACE", namespace) + "---\n" + manifest
	}
	m.applyObjects(t, manifest+input.String())
	m.pod.weir.Signal(syscall.SIGKILL)
	m.pod.weir.Wait(patience)
	m.pod.runWeir(t, m, "--charge-each", "--allow-peek-at-limit")
	m.generate(t, m.input+input.String())

	limits := strings.Split(readPath(t, root+"/e2e/testdata/policies.txt"), "\n")
	m.namespace(t, "web", "10.91.0.30").serve(t)
	client := m.namespace(t, "policies", "10.91.0.31")
	for i, section := range gateways {
		name, lines, _ := strings.Cut(section, "\n")
		t.Run(name, func(t *testing.T) {
			p := m.startEdge(t, name, fmt.Sprintf("10.91.0.%d", 40+i))
			var routes []string
			ports := map[string]string{} // by host
			for line := range strings.Lines(lines) {
				if f := strings.Fields(line); len(f) == 4 && f[0] == "route" {
					routes = append(routes, f[1]+" "+f[2])
					host, port, _ := strings.Cut(f[1], ":")
					ports[host] = port
				}
			}
			p.awaitRoutes(t, routes)
			for line := range strings.Lines(lines) {
				if request, want, ok := strings.Cut(line, " = "); ok {
					status, headers := client.answer(t, p.ip, ports[strings.Fields(request)[2]], request)
					if want := strings.Fields(want)[0]; status != want {
						t.Errorf("%s: %s, want %s", request, status, want)
					}
					if got := name + " " + request + " =" + headers; got != limits[0] {
						t.Errorf("%s, want\n%s", got, limits[0])
					}
					limits = limits[1:]
				}
			}
			p.killAll(t)
		})
	}
}

// startEdge starts the pod of the Gateway edge of a namespace.
func (m *mesh) startEdge(t *testing.T, namespace, ip string) *pod {
	t.Helper()
	var service object
	m.Get(t, &service, "--namespace", namespace, "service", "edge-istio")
	ports := map[string]int{}
	for _, port := range list(service, "spec", "ports") {
		number, _ := child(port)["port"].(float64)
		ports[text(port, "name")] = int(number)
	}
	m.endpoints(t, namespace, "edge-istio", ip, ports)
	name := "edge-" + namespace
	p := m.createPod(t, namespace, "edge-istio", ip, name)
	p.namespace = m.namespace(t, name, ip)
	// As the sysctl of the pod says.
	run(t, "ip", "netns", "exec", name, "sh", "-c", "echo 0 >/proc/sys/net/ipv4/ip_unprivileged_port_start")
	m.runProxy(t, p)
	return p
}

// answer sends a request of requests.txt, and returns its status and its X-RateLimit headers.
func (n *namespace) answer(t *testing.T, ip, port, request string) (status, headers string) {
	t.Helper()
	f := strings.Fields(request)
	q := question{Method: f[0], URL: "http://" + ip + ":" + port + f[1], Host: f[2], Header: http.Header{}}
	for _, header := range f[3:] {
		name, value, _ := strings.Cut(header, ":")
		q.Header.Add(name, value)
	}
	a := n.one(t, q)
	if code := a.Header.Get("Grpc-Status"); code != "" {
		return "grpc-" + code, proctest.RateLimit(a.Header)
	}
	return strconv.Itoa(a.Status), proctest.RateLimit(a.Header)
}

// awaitRoutes waits until the Envoy has exactly the routes that begin like these: VIRTUALHOST NAME, "limited" if Weir's
// filter has limits for the route, and a period.
func (p *pod) awaitRoutes(t *testing.T, want []string) {
	t.Helper()
	slices.Sort(want)
	await(t, func() error {
		const dump = "http://127.0.0.1:15000/config_dump?resource=dynamic_route_configs"
		var all object
		if err := json.Unmarshal([]byte(p.one(t, question{Method: "GET", URL: dump}).Body), &all); err != nil {
			return err
		}
		var got []string
		for _, config := range list(all, "configs") {
			for _, host := range list(config, "route_config", "virtual_hosts") {
				for _, route := range list(host, "routes") {
					line := text(host, "name") + " " + cmp.Or(text(route, "name"), "(unnamed)")
					if podtest.At(route, "typed_per_filter_config", "weir.ratelimit") != nil {
						line += " limited"
					}
					got = append(got, line+" .")
				}
			}
		}
		if slices.Sort(got); !slices.EqualFunc(got, want, strings.HasPrefix) {
			time.Sleep(100 * time.Millisecond)
			return fmt.Errorf("the routes of %s are\n%s\nwant\n%s", p.name, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		return nil
	})
}
