package cli

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Variables that are very like one of ours stop the start, but not those that Kubernetes injects for Services.
func TestMisspelledVariables(t *testing.T) {
	parser, err := newParser(&cli{}, streams{out: t.Output(), err: t.Output()}, func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	known := knownVariables(parser.Model.Node)
	if !known["WEIR_STORE"] || !known["WEIR_SERVER"] || !known["WEIR_PUBLISH_AUTHOR"] {
		t.Fatalf("known are %v", known)
	}
	for _, tt := range []struct {
		variables string
		want      string
	}{
		{"WEIR_STOER= PATH=/bin WEIR=1 WEIR_STORE=memory WEIR_SERVER=x WEIR_PUBLISH_AUTHOR=x", ""},
		// A Service named weir.
		{"WEIR_SERVICE_HOST=10.0.0.1 WEIR_SERVICE_PORT=8081 WEIR_SERVICE_PORT_GRPC=8081 WEIR_PORT=tcp://10.0.0.1:8081 " +
			"WEIR_PORT_8081_TCP=tcp://10.0.0.1:8081 WEIR_PORT_8081_TCP_PROTO=tcp WEIR_PORT_8081_TCP_PORT=8081 WEIR_PORT_8081_TCP_ADDR=10.0.0.1", ""},
		// Services named weir-store, weir-rules and weir-grpc-addr, one of them of UDP.
		{"WEIR_STORE_SERVICE_HOST=10.0.0.1 WEIR_STORE_PORT=udp://10.0.0.1:6379 WEIR_RULES_PORT_53_UDP_ADDR=10.0.0.1 " +
			"WEIR_GRPC_ADDR_SERVICE_PORT=1", ""},
		// Typos.
		{"WEIR_STOER=x", "WEIR_STOER is not a variable of weir; did you mean WEIR_STORE?"},
		{"WEIR_RULE=x", "WEIR_RULE is not a variable of weir; did you mean WEIR_RULES?"},
		{"WEIR_STORE_TIME_OUT=1s", "WEIR_STORE_TIME_OUT is not a variable of weir; did you mean WEIR_STORE_TIMEOUT?"},
		{"WEIR_FALLBACK_REPLICA=2", "WEIR_FALLBACK_REPLICA is not a variable of weir; did you mean WEIR_FALLBACK_REPLICAS?"},
		// What a manifest makes others of is no reason not to start.
		{"WEIR_STORE_PASSWORD=topsecret WEIR_GRPC_PORT=8081", ""},
	} {
		got := misspelledVariables(strings.Fields(tt.variables), known)
		if diff := cmp.Diff(tt.want, strings.Join(got, "\n")); diff != "" {
			t.Errorf("%s: -want +got\n%s", tt.variables, diff)
		}
	}
}
