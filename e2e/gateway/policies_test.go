//go:build e2e

package gateway

import (
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/podtest"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// policies are the policies that "weir generate istio" reads, and requests.txt.
const policies = root + "/internal/istio/testdata/policies/"

// edgeManifest has what each Gateway of the policies needs in addition. Istio does not merge slashes by default.
const edgeManifest = `
apiVersion: v1
kind: Namespace
metadata: {name: NAMESPACE}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: NAMESPACE}
spec: {ports: [{name: http, port: 80, targetPort: 8000}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web, namespace: NAMESPACE, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
endpoints: [{addresses: [` + hostIP + `], conditions: {ready: true}}]
ports: [{name: http, port: 8000, protocol: TCP}]
---
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: ClientTrafficPolicy
metadata: {name: client, namespace: NAMESPACE}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: edge}]
  clientIPDetection: {xForwardedFor: {numTrustedHops: 1}}
  path: {disableMergeSlashes: true}
---
`

// runPolicies sends requests.txt to the Gateways of the policies. Statuses must be as written there and X-RateLimit
// headers as in e2e/testdata/policies.txt, since TestPolicies of e2e gets those from what "weir generate istio" makes
// of the same policies.
func (c *cluster) runPolicies(t *testing.T) {
	files, err := filepath.Glob(policies + "*.yaml")
	if err != nil || len(files) != 12 {
		t.Fatal(files, err)
	}
	gateways := strings.Split(read(t, policies+"requests.txt"), "\ngateway ")[1:]
	unseen, _, _ := strings.Cut(read(t, "../istio/testdata/unseen.yaml"), "---\n") // the rest is Istio's
	var all strings.Builder
	for i, file := range files {
		namespace, _, _ := strings.Cut(gateways[i], "\n")
		if peer && namespace == "five" {
			continue // one key and value twice: see the case "one bad rule"
		}
		all.WriteString(strings.ReplaceAll(edgeManifest, "NAMESPACE", namespace) + read(t, file) + "---\n")
	}
	manifest := strings.ReplaceAll(all.String()+unseen, "gatewayClassName: istio", "gatewayClassName: eg")
	c.Apply(t, manifest)
	proctest.Await(t, patience, func() error {
		accepted := c.Kubectl(t, "get", "backendtrafficpolicies", "--all-namespaces", "-o", `jsonpath={range .items[*]}`+
			`{.metadata.namespace} {.metadata.name} {.status.ancestors[*].conditions[?(@.type=="Accepted")].status}{"\n"}{end}`)
		if strings.Count(accepted, " True\n") != strings.Count(manifest, "kind: BackendTrafficPolicy\n") {
			return fmt.Errorf("Envoy Gateway does not accept every policy:\n%s", accepted)
		}
		return nil
	})
	limits := strings.Split(read(t, root+"/e2e/testdata/policies.txt"), "\n")
	for _, gateway := range gateways {
		name, lines, _ := strings.Cut(gateway, "\n")
		t.Run(name, func(t *testing.T) {
			if peer && name == "five" {
				t.Skip("envoyproxy/ratelimit refuses the whole set")
			}
			c.startProxy(t, name, "edge")
			defer podtest.Command(t, "podman", "rm", "--force", "--time", "1", "proxy")
			proctest.Await(t, patience, func() error {
				_, _, clusters, err := request(http.MethodGet, "http://"+proxyIP+":19000/clusters", nil)
				if err == nil && !strings.Contains(clusters, "ratelimit_cluster::"+weirIP) {
					err = errors.New("Envoy does not know the address of the rate limit service")
				}
				return err
			})
			c.ask(t, name, lines, limits)
		})
		limits = limits[strings.Count(lines, " = "):]
	}
}

// ask sends requests of requests.txt to the Gateway of a namespace.
func (c *cluster) ask(t *testing.T, namespace, lines string, limits []string) {
	t.Helper()
	ports := map[string]string{} // of hosts
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	for line := range strings.Lines(lines) {
		f := strings.Fields(line)
		if len(f) == 4 && f[0] == "route" {
			host, port, _ := strings.Cut(f[1], ":")
			ports[host] = "100" + port // as of a process without privileges
		}
		text, want, ok := strings.Cut(strings.TrimSpace(line), " = ")
		if !ok {
			continue
		}
		req, err := http.NewRequest(f[0], "http://"+proxyIP+":"+ports[f[2]]+f[1], http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = f[2]
		for _, header := range strings.Fields(text)[3:] {
			name, value, _ := strings.Cut(header, ":")
			req.Header.Add(name, value)
		}
		calls := completedCalls(t)
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		got := strconv.Itoa(resp.StatusCode)
		if grpc := resp.Header.Get("Grpc-Status"); grpc != "" {
			got = "grpc-" + grpc
		}
		if want, _, _ = strings.Cut(want, " "); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
		if got := namespace + " " + text + " =" + proctest.RateLimit(resp.Header); got != limits[0] {
			t.Errorf("%s, want\n%s", got, limits[0])
		}
		limits = limits[1:]
		if strings.Contains(line, "**10") { // the cost of the response arrives after it
			proctest.Await(t, patience, func() error {
				if now := completedCalls(t); now < calls+2 {
					return fmt.Errorf("%d calls, want two more than %d", now, calls)
				}
				return nil
			})
		}
	}
}

// completedCalls returns the number of Envoy's calls to the rate limit service that have ended.
func completedCalls(t *testing.T) (calls int) {
	t.Helper()
	const counter = "cluster.ratelimit_cluster.upstream_rq_completed"
	_, _, stats, err := request(http.MethodGet, "http://"+proxyIP+":19000/stats?filter=^"+counter+"$", nil)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = fmt.Sscanf(stats, counter+": %d", &calls) // no counter before the first call
	return calls
}
