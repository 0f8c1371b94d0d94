//go:build e2e && linux

// Package istio applies the files of deploy/istio to a real Istio: a real kube-apiserver with Istio's CRDs, the real
// istiod, which injects the pods, issues their certificates and applies the EnvoyFilters, and for each pod the real
// istio-agent with a real Envoy. The pods are network namespaces with Istio's own redirect rules.
//
// Envoy is the one of envoyproxy/envoy, not Istio's build: Istio's extensions for telemetry are switched off.
//
// make e2e-istio runs it: the programs take twenty minutes to build.
package istio

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/podtest"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// patience is how long a step may take on a busy machine.
const patience = 3 * time.Minute

// root is the root of Weir's module, deploy the files that are tried.
const (
	root   = "../.."
	deploy = root + "/deploy/istio"
)

// Addresses of the machine and of the pods.
const (
	hostIP    = "10.91.0.1"
	gatewayIP = "10.91.0.10"
	weirIP    = "10.91.0.11"
	shopIP    = "10.91.0.12"
	callerIP  = "10.91.0.13"
	clientIP  = "10.91.0.14"
)

// TestMain is also the service behind Envoy, and the client in a pod: they run in the pods' network namespaces.
func TestMain(m *testing.M) {
	switch {
	case os.Getenv("WEIR_TEST_SERVE") != "":
		fmt.Println(http.ListenAndServe(os.Getenv("WEIR_TEST_SERVE"), http.HandlerFunc(echo)))
		os.Exit(1)
	case os.Getenv("WEIR_TEST_SEND") != "":
		sendFromHere(os.Getenv("WEIR_TEST_SEND"))
	default:
		os.Exit(m.Run())
	}
}

func TestIstio(t *testing.T) {
	if os.Getenv("WEIR_TEST_ISTIO") == "" {
		t.Skip("not run: make e2e-istio runs it, with $WEIR_TEST_ISTIO set")
	}
	dir := enter(t, 25*time.Minute, tool("pilot-discovery"), tool("pilot-agent"), tool("istioctl"))
	if dir == "" {
		return
	}
	m := &mesh{Cluster: podtest.StartClusterAt(t, hostIP), dir: dir, weir: absolute(t, proctest.WeirBinary(t))}
	m.install(t, envoyProgram(t))
	m.accepts(t)
	m.startIstiod(t)
	m.apply(t, "weir.yaml", "access.yaml", "shop.yaml")
	m.Apply(t, testdata(t, "callers.yaml"))
	m.endpoints(t, "weir-system", "weir", weirIP, map[string]int{"grpc": 8081, "http": 8080})
	m.endpoints(t, "shop", "shop", shopIP, map[string]int{"http": 8080})
	m.endpoints(t, "istio-system", "istio-ingressgateway", gatewayIP, map[string]int{"http2": 8080})

	m.pod = m.startPod(t, "weir-system", "weir", weirIP)
	m.pod.runWeir(t, m)
	m.input = read(t, "limits.yaml")
	m.generate(t, m.input)
	shop := m.startPod(t, "shop", "shop", shopIP)
	shop.serve(t)
	caller := m.startPod(t, "shop", "caller", callerIP)
	gateway := m.startPod(t, "istio-system", "istio-ingressgateway", gatewayIP)
	client := m.namespace(t, "client", clientIP)

	m.analyzes(t)
	t.Run("gateway", func(t *testing.T) { testGateway(t, m, client) })
	t.Run("sidecar", func(t *testing.T) { testSidecar(t, m, caller, shop) })
	t.Run("access", func(t *testing.T) { testAccess(t, m, client, caller) })
	t.Run("gateway API", func(t *testing.T) { testGatewayAPI(t, m) })
	t.Run("names", func(t *testing.T) { testNames(t, m, gateway) })
	t.Run("policies", func(t *testing.T) { testPolicies(t, m) })
	t.Run("waypoint", func(t *testing.T) { testWaypoint(t, m) })
	t.Run("socket", func(t *testing.T) { testSocket(t, m, caller) })
	t.Run("template", func(t *testing.T) { testTemplate(t, m) })
}

// tool returns the path of a program that scripts/tools.sh builds.
func tool(name string) string { return filepath.Join(root, ".tools", "bin", name) }

// envoyProgram returns Envoy itself: its package of PyPI starts it by a script, which the pods' users may not run.
func envoyProgram(t *testing.T) string {
	t.Helper()
	found, err := filepath.Glob(root + "/.tools/venv/lib/python3*/site-packages/envoy/_bin/envoy")
	if err != nil || len(found) == 0 {
		t.Fatalf("no Envoy in .tools/venv (%v): scripts/tools.sh envoy gets it", err)
	}
	return absolute(t, found[0])
}

// absolute returns a path that is valid in every working directory.
func absolute(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// write writes a file that the pods' users can read.
func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// read returns a file of deploy/istio.
func read(t *testing.T, name string) string { return readPath(t, filepath.Join(deploy, name)) }

// testdata returns a file of testdata.
func testdata(t *testing.T, name string) string { return readPath(t, filepath.Join("testdata", name)) }

func readPath(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// run runs a program that must succeed, and returns its output.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// await polls until done returns nil.
func await(t *testing.T, done func() error) {
	t.Helper()
	proctest.Await(t, patience, done)
}
