package envoytest

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// config is an Envoy that answers without an upstream. No test uses its admin port: Start chooses another one.
const config = `
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 9901}}}
static_resources:
  listeners:
    - name: front
      address: {socket_address: {address: 127.0.0.1, port_value: 0}}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: front
                http_filters:
                  - name: envoy.filters.http.router
                    typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
                route_config:
                  virtual_hosts:
                    - name: all
                      domains: ["*"]
                      routes: [{match: {prefix: /}, direct_response: {status: 200, body: {inline_string: hello}}}]
`

func TestTwoEnvoysSideBySide(t *testing.T) {
	a, b := Start(t, config), Start(t, config)
	if a.Admin == b.Admin || strings.HasSuffix(a.Admin, ":9901") {
		t.Fatalf("admin interfaces %s and %s, want two of Envoy's choice", a.Admin, b.Admin)
	}
	for range 3 {
		resp, err := http.Get("http://" + a.Listener("front"))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil || string(body) != "hello" {
			t.Fatalf("answered %q, %v", body, err)
		}
		if err := resp.Body.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if got := a.Stat("http.front.downstream_rq_2xx"); got != 3 {
		t.Errorf("the first Envoy counted %d requests, want 3", got)
	}
	if got := b.Stat("http.front.downstream_rq_2xx"); got != 0 {
		t.Errorf("the second Envoy counted %d requests, want 0", got)
	}
	a.Terminate(patience)
	if _, err := a.get("/ready"); err == nil {
		t.Error("a stopped Envoy answers")
	}
}
