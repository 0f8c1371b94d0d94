//go:build e2e

package gateway

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/podtest"
)

// What Envoy Gateway's chart installs, as far as the gateway looks at it: it owns what it creates by its own objects.
const ownManifest = `
apiVersion: v1
kind: Namespace
metadata: {name: envoy-gateway-system}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: envoy-gateway, namespace: envoy-gateway-system}
---
apiVersion: v1
kind: Service
metadata: {name: envoy-gateway, namespace: envoy-gateway-system}
spec:
  selector: {control-plane: envoy-gateway}
  ports: [{name: grpc, port: 18000}, {name: ratelimit, port: 18001}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: envoy-gateway, namespace: envoy-gateway-system}
spec:
  replicas: 0
  selector: {matchLabels: {control-plane: envoy-gateway}}
  template:
    metadata: {labels: {control-plane: envoy-gateway}}
    spec: {containers: [{name: envoy-gateway, image: "localhost/envoy-gateway"}]}
`

// gatewayManifest makes a listener. Clients say who they are by X-Forwarded-For.
const gatewayManifest = `
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: eg}
spec: {controllerName: gateway.envoyproxy.io/gatewayclass-controller}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: eg, namespace: default}
spec:
  gatewayClassName: eg
  listeners: [{name: http, protocol: HTTP, port: 8888}]
---
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: ClientTrafficPolicy
metadata: {name: client, namespace: default}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: eg}]
  clientIPDetection: {xForwardedFor: {numTrustedHops: 1}}
---
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: Backend
metadata: {name: backend, namespace: default}
spec: {endpoints: [{ip: {address: ` + hostIP + `, port: 8000}}]}
`

// installGateway applies the CRDs of Envoy Gateway's module and makes its certificates.
func (c *cluster) installGateway(t *testing.T) {
	t.Helper()
	c.CRDs(t, filepath.Join(moduleDir(t), "charts/gateway-helm/charts/crds/crds"))
	c.Apply(t, ownManifest)
	cmd := exec.Command(tool("envoy-gateway"), "certgen", "--disable-topology-injector")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig, "ENVOY_GATEWAY_NAMESPACE="+system)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("certgen: %v\n%s", err, out)
	}
	c.secret(t, "envoy-gateway", filepath.Join(c.dir, "gateway-certs"))
	config := filepath.Join(c.dir, "gateway-config")
	write(t, filepath.Join(config, "envoy-gateway.yaml"), gatewayConfig(t))
	kubeconfig, err := os.ReadFile(c.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(config, "kubeconfig"), string(kubeconfig))
}

// startGateway runs Envoy Gateway's control plane.
func (c *cluster) startGateway(t *testing.T) {
	t.Helper()
	binary, err := filepath.EvalSymlinks(tool("envoy-gateway"))
	if err == nil {
		binary, err = filepath.Abs(binary)
	}
	if err != nil {
		t.Fatal(err)
	}
	podtest.Command(t, "podman", "run", "--detach", "--name", "envoy-gateway", "--network", "cluster", "--ip", gatewayIP,
		"--env", "ENVOY_GATEWAY_NAMESPACE="+system, "--env", "KUBERNETES_CLUSTER_DOMAIN=cluster.local",
		"--env", "KUBECONFIG=/config/kubeconfig",
		"--volume", binary+":/usr/local/bin/envoy-gateway:ro", "--volume", filepath.Join(c.dir, "gateway-certs")+":/certs:ro",
		"--volume", filepath.Join(c.dir, "gateway-config")+":/config:ro", "--entrypoint", "/usr/local/bin/envoy-gateway",
		envoyImage, "server", "--config-path=/config/envoy-gateway.yaml")
}

// stopGateway ends it, as a new version of its Deployment would.
func (c *cluster) stopGateway(t *testing.T) {
	t.Helper()
	podtest.Command(t, "podman", "rm", "--force", "--time", "5", "envoy-gateway")
}
