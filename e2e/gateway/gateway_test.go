//go:build e2e

// Package gateway runs Weir where Envoy Gateway runs envoyproxy/ratelimit. A real Envoy Gateway with a real
// kube-apiserver creates the rate limit service's Deployment with Weir's image in it. Podman runs that pod as it is. A
// real Envoy takes its listeners from the gateway and asks the pod. Limits are BackendTrafficPolicies.
//
// make e2e-gateway runs it: the programs take ten minutes to build.
package gateway

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/podtest"
)

// peer, set by $WEIR_TEST_PEER, has the pod run envoyproxy/ratelimit itself: are the test's expectations right?
var peer = os.Getenv("WEIR_TEST_PEER") != ""

// patience is how long a step may take on a busy machine.
const patience = 2 * time.Minute

// gatewayModule is Envoy Gateway, whose CRDs and golden files are read; scripts/tools.sh builds the same version.
const gatewayModule = "github.com/envoyproxy/gateway@v1.9.1"

// root is the root of Weir's module.
const root = "../.."

// Names and addresses of the cluster. Every program runs in podman's network "cluster", besides etcd, kube-apiserver,
// the backend and the test itself, which run at its gateway.
const (
	network   = "10.90.0.0/24"
	hostIP    = "10.90.0.1"
	redisIP   = "10.90.0.2"
	gatewayIP = "10.90.0.3"
	weirIP    = "10.90.0.4"
	proxyIP   = "10.90.0.5"
	ownWeirIP = "10.90.0.6"

	system     = "envoy-gateway-system"
	image      = "localhost/weir:e2e"
	envoyImage = "docker.io/envoyproxy/envoy:v1.40.0"
)

func TestGateway(t *testing.T) {
	if os.Getenv("WEIR_TEST_GATEWAY") == "" {
		t.Skip("make e2e-gateway runs it")
	}
	dir := podtest.Enter(t, root, 30*time.Minute,
		tool("etcd"), tool("kube-apiserver"), tool("kubectl"), tool("envoy-gateway"))
	if dir == "" {
		return
	}
	podtest.Configure(t, dir)
	// Envoy looks for names with and without a dot at the end.
	const domain = ".svc.cluster.local"
	podtest.Hosts(t, dir,
		gatewayIP+" envoy-gateway envoy-gateway."+system+domain+" envoy-gateway."+system+domain+".",
		redisIP+" redis.redis-system"+domain,
		weirIP+" envoy-ratelimit."+system+domain+" envoy-ratelimit."+system+domain+".",
		ownWeirIP+" weir.weir-system"+domain+" weir.weir-system"+domain+".")
	t.Cleanup(func() { podtest.Logs(t) })
	buildImages(t)
	startRedis(t)

	c := startCluster(t, dir)
	c.installGateway(t)
	c.acceptsFiles(t)
	c.startGateway(t)
	c.Apply(t, gatewayManifest)
	w := c.startService(t)
	startBackend(t)
	t.Run("policies of Istio", c.runPolicies)
	c.startProxy(t, "default", "eg")
	runCases(t, &world{cluster: c, service: w})
}

// tool returns the path of a program that scripts/tools.sh gateway builds.
func tool(name string) string { return filepath.Join(root, ".tools", "bin", name) }
