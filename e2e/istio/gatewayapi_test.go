//go:build e2e && linux

package istio

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// gatewayAPIModule has the CRDs of the Gateway API, in the version that istiod is built with.
const gatewayAPIModule = "sigs.k8s.io/gateway-api@v1.6.0"

// testGatewayAPI: limits at a gateway of the Gateway API, for which istiod makes the Deployment.
func testGatewayAPI(t *testing.T, m *mesh) {
	manifest := testdata(t, "gatewayapi.yaml")
	m.Apply(t, manifest)
	limits := strings.Replace(firstLimits(t), "istio-system/ingressgateway", "shop/edge", 1)
	m.generate(t, m.input+"---\n"+manifest+"---\n"+limits)
	const ip = "10.91.0.25"
	m.endpoints(t, "shop", "edge-istio", ip, map[string]int{"http": 8088})
	m.startPod(t, "shop", "edge-istio", ip)

	const url = "http://" + ip + ":8088/"
	probe := m.namespace(t, "api-probe", "10.91.0.26")
	awaitHeader(t, probe, question{Method: "GET", URL: url}, `10, 10;w=3600;name="shop/edge/per-client"`)
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

// firstLimits returns the first document of limits.yaml.
func firstLimits(t *testing.T) string {
	t.Helper()
	first, _, _ := strings.Cut(read(t, "limits.yaml"), "---\n")
	return first
}

// gatewayAPICRDs is the folder of the CRDs.
func gatewayAPICRDs(t *testing.T) string {
	t.Helper()
	return filepath.Join(moduleDir(t, gatewayAPIModule), "config/crd/standard")
}

// testWaypoint: istiod puts the filter into the waypoint's listener for requests to services. Sending requests needs
// Istio's build of Envoy.
func testWaypoint(t *testing.T, m *mesh) {
	m.Apply(t, testdata(t, "waypoint.yaml"))
	m.generate(t, m.input+`---
gateway: ambient/waypoint
class: istio-waypoint
limits: [{name: callers, per: caller, allow: 1000 per day}]
`)
	p := m.createPod(t, "ambient", "waypoint", "10.91.0.34", "waypoint")
	p.namespace = m.namespace(t, "waypoint", p.ip)
	m.startProxy(t, p)
	await(t, func() error {
		const dump = "http://127.0.0.1:15000/config_dump?resource=dynamic_listeners&name_regex=main_internal"
		if a := p.one(t, question{Method: "GET", URL: dump}); !strings.Contains(a.Body, `"name": "weir.ratelimit"`) {
			return fmt.Errorf("main_internal has no filter of Weir: %.3000v", a)
		}
		return nil
	})
}
