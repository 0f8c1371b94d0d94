//go:build e2e

package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weir-ratelimit/weir/internal/test/podtest"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// deployFile returns a file of deploy/, which users apply.
func deployFile(t *testing.T, name string) string {
	t.Helper()
	return read(t, filepath.Join(root, "deploy", name))
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// gatewayConfig is the gateway's own configuration: what the chart makes of deploy/envoy-gateway/values.yaml, with the
// image of this test, more time for a busy machine, and what other cases need.
func gatewayConfig(t *testing.T) string {
	t.Helper()
	type object = map[string]any
	var values struct {
		Config struct {
			EnvoyGateway struct {
				RateLimit     object `yaml:"rateLimit"`
				ExtensionAPIs object `yaml:"extensionApis"`
			} `yaml:"envoyGateway"`
		} `yaml:"config"`
	}
	if err := yaml.Unmarshal([]byte(deployFile(t, "envoy-gateway/values.yaml")), &values); err != nil {
		t.Fatal(err)
	}
	limit, apis := values.Config.EnvoyGateway.RateLimit, values.Config.EnvoyGateway.ExtensionAPIs
	limit["timeout"], limit["failClosed"] = "10s", true
	apis["enableBackend"], apis["enableLua"] = true, true
	config, err := yaml.Marshal(object{
		"apiVersion": "gateway.envoyproxy.io/v1alpha1", "kind": "EnvoyGateway",
		"gateway": object{"controllerName": "gateway.envoyproxy.io/gatewayclass-controller"},
		"provider": object{"type": "Kubernetes", "kubernetes": object{
			"leaderElection": object{"disable": true}, "proxyTopologyInjector": object{"disabled": true},
			"rateLimitDeployment": object{"container": object{"image": image}},
		}},
		"rateLimit": limit, "extensionApis": apis,
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(config)
}

// acceptsFiles: the API server takes the files of deploy/envoy-gateway, strictly.
func (c *cluster) acceptsFiles(t *testing.T) {
	t.Helper()
	c.Kubectl(t, "create", "namespace", "redis-system")
	for _, file := range []string{"redis.yaml", "shop.yaml", "policy.yaml", "patch.yaml"} {
		if out, err := c.DryRun(deployFile(t, "envoy-gateway/"+file)); err != nil {
			t.Errorf("%s: %v\n%s", file, err, out)
		}
	}
	broken := strings.Replace(deployFile(t, "envoy-gateway/patch.yaml"), "jsonPatches:", "jsonPatch:", 1)
	if _, err := c.DryRun(broken); err == nil || !strings.Contains(err.Error(), `unknown field "spec.jsonPatch"`) {
		t.Errorf("a misspelled field: %v, want an error that names it", err)
	}
}

// The route of deploy/envoy-gateway, to the test's backend.
const shopRoute = `
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: shop, namespace: default}
spec:
  parentRefs: [{name: eg}]
  rules:
    - matches: [{path: {type: PathPrefix, value: /}}]
      backendRefs: [{group: gateway.envoyproxy.io, kind: Backend, name: backend}]
`

// policyFile: the limit of policy.yaml holds.
func (w *world) policyFile(t *testing.T) {
	w.cluster.Apply(t, shopRoute)
	w.cluster.Apply(t, deployFile(t, "envoy-gateway/policy.yaml"))
	defer w.cluster.Kubectl(t, "delete", "backendtrafficpolicy", "shop")
	w.await(t, rateLimitCase{name: "shop"})
	hour := time.Now().Truncate(time.Hour)
	from := func(address string) headers { return headers{"X-Forwarded-For": address} }
	for i := range 11 {
		want := passed
		if i == 10 {
			want = denied
		}
		if status, header := send(t, "/", from("198.51.100.7")); status != want && time.Since(hour) < time.Hour {
			t.Errorf("request %d of ten an hour: status %d, want %d: %v", i+1, status, want, header)
		}
	}
	expect(t, "/", from("198.51.100.8"), passed)
	if peer {
		return
	}
	names := strings.Fields(podtest.Command(t, "podman", "ps", "--format", "{{.Names}}"))
	isService := func(name string) bool { return strings.HasSuffix(name, "-envoy-ratelimit") }
	i := slices.IndexFunc(names, isService)
	if i < 0 {
		t.Fatalf("the service is none of the containers %v", names)
	}
	status := podtest.Command(t, "podman", "exec", names[i], "/bin/weir", "status")
	if !strings.Contains(status, "xds") || !strings.Contains(status, "redis") {
		t.Errorf("weir status in the pod:\n%s", status)
	}
	t.Logf("weir status in the pod:\n%s", status)
}

// patchFile: Envoy asks a Weir of its own rules by patch.yaml, besides what BackendTrafficPolicies limit.
func (w *world) patchFile(t *testing.T) {
	if peer {
		t.Skip("envoyproxy/ratelimit has no such rules")
	}
	rules := filepath.Join(w.cluster.dir, "own-rules")
	for name, text := range configMap(t, deployFile(t, "kubernetes/weir.yaml")) {
		write(t, filepath.Join(rules, name), text)
	}
	podtest.Command(t, "podman", "run", "--detach", "--name", "weir", "--network", "cluster", "--ip", ownWeirIP,
		"--volume", rules+":/rules:ro", image, "serve", "--rules", "/rules")
	proctest.Await(t, patience, func() error { return ok("http://" + ownWeirIP + ":8080/readyz") })
	w.cluster.Apply(t, shopRoute)
	// 20 ms may pass on a busy machine.
	w.cluster.Apply(t, strings.Replace(deployFile(t, "envoy-gateway/patch.yaml"), "timeout: 0.02s", "timeout: 10s", 1))

	const name = `name="per-client"`
	from := func(address string) headers { return headers{"X-Forwarded-For": address} }
	proctest.Await(t, patience, func() error {
		_, header := send(t, "/", from("198.51.100.20"))
		if limit := header.Get("X-Ratelimit-Limit"); !strings.Contains(limit, name) {
			return fmt.Errorf("Envoy does not ask its own Weir: %v\n%s", header,
				w.cluster.Kubectl(t, "get", "envoypatchpolicy", "weir", "-o", "jsonpath={.status}"))
		}
		return nil
	})
	http.DefaultClient.CloseIdleConnections() // those of the listener without the patch
	if status := w.cluster.Kubectl(t, "get", "envoypatchpolicy", "weir", "-o",
		`jsonpath={.status.ancestors[0].conditions[?(@.type=="Programmed")].status}`); status != "True" {
		t.Errorf("the policy is Programmed: %q", status)
	}
	for i := range 12 {
		want := passed
		if i >= 10 {
			want = denied
		}
		status, header := send(t, "/", from("198.51.100.21"))
		if status != want || header.Get("X-Ratelimit-Limit") != "10, 10;w=60;"+name {
			t.Errorf("request %d: status %d, want %d: %v", i+1, status, want, header)
		}
	}
	for i, path := range []string{"/login", "/LOGIN/", "/login;a=b", "/login?a=b", "/login", "/login", "/"} {
		want := passed
		if i == 5 {
			want = denied
		}
		if status, header := send(t, path, from("198.51.100.22")); status != want {
			t.Errorf("login %d, %s: status %d, want %d: %v", i+1, path, status, want, header)
		}
	}
	// A route with a BackendTrafficPolicy has both: three a day of the policy, ten a minute of the file.
	user := headers{"X-User-Id": "both", "X-Forwarded-For": "198.51.100.23"}
	expect(t, "/distinct", user, passed, passed, passed, denied)

	podtest.Command(t, "podman", "rm", "--force", "--time", "5", "weir")
	expect(t, "/", from("198.51.100.21"), passed, passed)
	w.cluster.Kubectl(t, "delete", "envoypatchpolicy", "weir")
	proctest.Await(t, patience, func() error {
		_, _, dump, err := request(http.MethodGet, "http://"+proxyIP+":19000/config_dump?resource=dynamic_listeners", nil)
		if err == nil && strings.Contains(dump, `"name": "weir"`) {
			err = errors.New("Envoy still has the patch")
		}
		return err
	})
}

// configMap returns the data of the first ConfigMap of a manifest.
func configMap(t *testing.T, manifest string) map[string]string {
	t.Helper()
	for decoder := yaml.NewDecoder(bytes.NewReader([]byte(manifest))); ; {
		var o struct {
			Kind string            `yaml:"kind"`
			Data map[string]string `yaml:"data"`
		}
		switch err := decoder.Decode(&o); {
		case errors.Is(err, io.EOF):
			t.Fatal("the manifest has no ConfigMap")
		case err != nil && o.Kind == "ConfigMap":
			t.Fatal(err)
		case o.Kind == "ConfigMap":
			return o.Data
		}
	}
}
