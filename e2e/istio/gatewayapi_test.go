//go:build e2e && linux

package istio

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// gatewayAPIModule has the CRDs of the Gateway API, in the version that istiod is built with.
const gatewayAPIModule = "sigs.k8s.io/gateway-api@v1.6.0"

// A gateway of the Gateway API, for which istiod makes the Deployment, and a route with a name.
const gatewayAPIManifest = `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec:
  gatewayClassName: istio
  listeners: [{name: http, protocol: HTTP, port: 8088}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: shop, namespace: shop}
spec:
  parentRefs: [{name: edge}]
  rules:
    - name: login
      matches: [{path: {type: PathPrefix, value: /login}}]
      backendRefs: [{name: shop, port: 80}]
    - matches: [{path: {type: PathPrefix, value: /}}]
      backendRefs: [{name: shop, port: 80}]
`

// testGatewayAPI: gateway.yaml limits at a gateway of the Gateway API, too, with its namespace and its label.
func testGatewayAPI(t *testing.T, m *mesh) {
	filter := read(t, "gateway.yaml")
	for before, after := range map[string]string{
		"timeout: 0.02s":                  "timeout: 5s",
		"namespace: istio-system":         "namespace: shop",
		"labels: {istio: ingressgateway}": "labels: {gateway.networking.k8s.io/gateway-name: edge}",
	} {
		if strings.Count(filter, before) != 1 {
			t.Fatalf("gateway.yaml does not have %q once", before)
		}
		filter = strings.Replace(filter, before, after, 1)
	}
	m.Apply(t, gatewayAPIManifest)
	m.Apply(t, filter)
	const ip = "10.91.0.25"
	m.endpoints(t, "shop", "edge-istio", ip, map[string]int{"http": 8088})
	m.startPod(t, "shop", "edge-istio", ip)

	const url = "http://" + ip + ":8088/"
	awaitHeader(t, m.namespace(t, "api-probe", "10.91.0.26"), question{Method: "GET", URL: url}, `10, 10;w=60;`)
	client := m.namespace(t, "api-client", "10.91.0.27")
	answers := client.send(t, question{Method: "GET", URL: url, Times: 11})
	if got, want := statuses(answers), repeat(200, 10, limited, 1); !slices.Equal(got, want) {
		t.Errorf("11 requests of one address: %v, want %v", got, want)
	}
	login := m.namespace(t, "api-login", "10.91.0.28")
	answers = login.send(t, question{Method: "POST", URL: url + "login", Times: 6})
	if got, want := statuses(answers), repeat(200, 5, limited, 1); !slices.Equal(got, want) {
		t.Errorf("6 logins: %v, want %v", got, want)
	}
}

// gatewayAPICRDs is the folder of the CRDs.
func gatewayAPICRDs(t *testing.T) string {
	t.Helper()
	return filepath.Join(moduleDir(t, gatewayAPIModule), "config/crd/standard")
}
