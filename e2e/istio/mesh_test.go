//go:build e2e && linux

package istio

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/weir-ratelimit/weir/internal/test/launch"
	"github.com/weir-ratelimit/weir/internal/test/podtest"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// mesh is a Kubernetes API, istiod, and the pods that run.
type mesh struct {
	*podtest.Cluster

	dir    string
	weir   string // the program
	pod    *pod   // of Weir in weir-system
	input  string // limits of the whole mesh, for weir generate istio
	istiod *proctest.Process
}

// object is a Kubernetes object as YAML or JSON have it.
type object = map[string]any

// objects are those of a manifest.
func objects(t *testing.T, manifest string) (all []object) {
	t.Helper()
	decoder := yaml.NewDecoder(strings.NewReader(manifest))
	for {
		var o object
		err := decoder.Decode(&o)
		if err != nil && strings.Contains(err.Error(), "EOF") {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if o != nil {
			all = append(all, o)
		}
	}
}

// text is at for a string.
func text(v any, path ...any) string {
	s, _ := podtest.At(v, path...).(string)
	return s
}

// list is the value under keys and indices, as a list.
func list(v any, path ...any) []any {
	l, _ := podtest.At(v, path...).([]any)
	return l
}

// child is the value under keys and indices, as an object.
func child(v any, path ...any) object {
	o, _ := podtest.At(v, path...).(object)
	return o
}

// install applies what istioctl installs, with Istio's own extensions of Envoy switched off.
func (m *mesh) install(t *testing.T, envoy string) {
	t.Helper()
	template, err := yaml.Marshal(object{
		"apiVersion": "install.istio.io/v1alpha1", "kind": "IstioOperator",
		"spec": object{"values": objects(t, read(t, "socket/template.yaml"))[0]},
	})
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(m.dir, "install.yaml"), string(template))
	manifest := run(t, tool("istioctl"), "manifest", "generate", "--set", "profile=default",
		"--set", "values.istiodRemote.injectionURL=https://istiod.istio-system.svc:15017/inject",
		"--set", "values.telemetry.enabled=false",
		"--set", "meshConfig.defaultConfig.binaryPath="+envoy,
		"--filename", filepath.Join(m.dir, "install.yaml"))
	var crds, others []string
	for _, o := range objects(t, manifest) {
		encoded, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		switch o["kind"] {
		case "CustomResourceDefinition":
			crds = append(crds, string(encoded))
		case "ValidatingWebhookConfiguration": // called by the Service, which nobody serves here
		default:
			others = append(others, string(encoded))
		}
	}
	file := filepath.Join(m.dir, "crds.yaml")
	write(t, file, strings.Join(crds, "---\n"))
	m.CRDs(t, file)
	m.CRDs(t, gatewayAPICRDs(t))
	m.Kubectl(t, "create", "namespace", "istio-system")
	m.Apply(t, strings.Join(others, "---\n"))
}

// startIstiod runs istiod by the arguments of its Deployment.
func (m *mesh) startIstiod(t *testing.T) {
	t.Helper()
	dir := filepath.Join(m.dir, "istiod")
	var deployment object
	m.Get(t, &deployment, "--namespace", "istio-system", "deployment", "istiod")
	c := podtest.At(deployment, "spec", "template", "spec", "containers", 0)
	args := []string{"--kubeconfig", m.Kubeconfig}
	args = append(args, arguments(child(c), nil)...)
	env := []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "POD_NAMESPACE=istio-system", "POD_NAME=istiod", "SERVICE_ACCOUNT=istiod",
		"PILOT_ENABLE_METADATA_EXCHANGE=false", "PILOT_ENABLE_ALPN_FILTER=false",
		"PILOT_FILTER_GATEWAY_CLUSTER_CONFIG=true", "PILOT_ENABLE_AMBIENT=true",
	}
	for _, v := range list(c, "env") {
		if value := text(v, "value"); value != "" && text(v, "name") != "KUBECONFIG" {
			env = append(env, text(v, "name")+"="+value)
		}
	}
	var config object
	m.Get(t, &config, "--namespace", "istio-system", "configmap", "istio")
	write(t, filepath.Join(dir, "etc/istio/config/mesh"), text(config, "data", "mesh"))
	cmd := exec.Command(absolute(t, tool("pilot-discovery")), args...)
	cmd.Dir, cmd.Env = dir, env
	m.istiod = proctest.Start(t, "istiod", cmd)
	m.istiod.Await(patience, func() error { return launch.Dial(t.Context(), "tcp", hostIP+":15012") })
	m.istiod.Await(patience, func() error {
		out := m.Kubectl(t, "get", "mutatingwebhookconfiguration", "istio-sidecar-injector",
			"-o", "jsonpath={.webhooks[*].clientConfig.caBundle}")
		if out == "" {
			return errors.New("istiod has not put its authority into the injection webhook")
		}
		return nil
	})
}

// apply applies files of deploy/istio. Envoy waits longer for Weir there: 20 ms may pass on a busy machine.
func (m *mesh) apply(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		m.Apply(t, strings.ReplaceAll(read(t, name), "timeout: 0.02s", "timeout: 5s"))
	}
}

// generate applies what weir generate istio makes of the input, and gives Weir the rules.
func (m *mesh) generate(t *testing.T, input string) {
	t.Helper()
	var stderr strings.Builder
	cmd := exec.Command(m.weir, "generate", "istio", "-")
	cmd.Stdin, cmd.Stderr = strings.NewReader(input), &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("weir generate istio: %v\n%s", err, &stderr)
	}
	t.Logf("weir generate istio:\n%s", &stderr)
	m.input = input
	m.Apply(t, strings.ReplaceAll(string(out), "timeout: 0.02s", "timeout: 5s"))
	m.pod.mountRules(t, m)
}

// endpoints makes what the cluster's controller makes of a Service and a ready pod.
func (m *mesh) endpoints(t *testing.T, namespace, service, ip string, ports map[string]int) {
	t.Helper()
	var list []string
	for name, port := range ports {
		list = append(list, fmt.Sprintf("{name: %s, port: %d, protocol: TCP}", name, port))
	}
	slices.Sort(list)
	m.Apply(t, fmt.Sprintf(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: %[2]s
  namespace: %[1]s
  labels: {kubernetes.io/service-name: %[2]s}
addressType: IPv4
endpoints:
  - addresses: [%[3]s]
    conditions: {ready: true}
    targetRef: {kind: Pod, name: %[2]s, namespace: %[1]s}
ports: [%[4]s]
`, namespace, service, ip, strings.Join(list, ", ")))
}
