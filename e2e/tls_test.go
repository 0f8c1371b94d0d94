//go:build e2e

package e2e

import (
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// Envoy and Weir know each other by certificates. Another client's certificate, of the same authority, is
// refused: then Envoy gets no answer, and says so with its 500.
func TestEnvoyAsksOverTLS(t *testing.T) {
	t.Parallel()
	ca := proctest.NewAuthority(t)
	cert, key := ca.Issue("weir", "weir.mesh")
	s := startWeir(t,
		ruleFile(t, "domain: shop\ndescriptors: [{key: remote_address, rate_limit: {requests_per_unit: 2, unit: year}}]"),
		"--grpc-tls-cert", cert, "--grpc-tls-key", key, "--grpc-tls-client-ca", ca.CA(), "--grpc-tls-client-names",
		"spiffe://mesh/ns/edge/sa/envoy")
	for _, tt := range []struct {
		name string
		want []int
	}{
		{"spiffe://mesh/ns/edge/sa/envoy", []int{200, 200, 429}},
		{"spiffe://mesh/ns/shop/sa/web", []int{500}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := proxy{Weir: []string{s.GRPC}, Domain: "shop", CA: ca.CA()}
			p.Cert, p.Key = ca.Issue("envoy", tt.name)
			c := newClient(t, "127.0.0.1", p.start(t).Listener("front"))
			for i, want := range tt.want {
				if got := c.status(t, "/"); got != want {
					t.Errorf("request %d: status %d, want %d", i+1, got, want)
				}
			}
		})
	}
}
