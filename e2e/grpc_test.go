//go:build e2e

package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
)

const modes = `
domain: modes
descriptors:
  - {key: shadow, shadow_mode: true, rate_limit: {requests_per_unit: 1, unit: year}}
  - {key: quota_a, quota_mode: true, rate_limit: {requests_per_unit: 1, unit: year}}
  - {key: quota_b, quota_mode: true, rate_limit: {requests_per_unit: 2, unit: year}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: everybody, rate_limit: {name: everybody, requests_per_unit: 1, unit: year}}
  - {key: vip, rate_limit: {name: vip, requests_per_unit: 3, unit: year, replaces: [{name: everybody}]}}
`

// ask asks for one descriptor of one entry for each key, and returns the answer as "OVER_LIMIT: OK OVER_LIMIT".
func ask(t *testing.T, conn *grpc.ClientConn, keys ...string) string {
	t.Helper()
	req := &pb.RateLimitRequest{Domain: "modes"}
	for _, key := range keys {
		entry := &common.RateLimitDescriptor_Entry{Key: key, Value: "x"}
		req.Descriptors = append(req.Descriptors,
			&common.RateLimitDescriptor{Entries: []*common.RateLimitDescriptor_Entry{entry}})
	}
	resp, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	answer := []string{resp.GetOverallCode().String() + ":"}
	for _, s := range resp.GetStatuses() {
		answer = append(answer, s.GetCode().String())
	}
	return strings.Join(answer, " ")
}

func TestModes(t *testing.T) {
	t.Parallel()
	conn := dial(t, startWeir(t, ruleFile(t, modes)).GRPC)
	for i, step := range []struct{ ask, want string }{
		{"free", "OK: OK"},
		{"nobody", "OK: OK"},
		{"shadow", "OK: OK"},
		{"shadow", "OK: OK"}, // over, but only in the shadow
		{"quota_a quota_b", "OK: OK OK"},
		{"quota_a quota_b", "OK: OVER_LIMIT OK"}, // not every quota is used up
		{"quota_a quota_b", "OVER_LIMIT: OVER_LIMIT OVER_LIMIT"},
		{"everybody", "OK: OK"},
		{"everybody", "OVER_LIMIT: OVER_LIMIT"},
		{"everybody vip", "OK: OK OK"}, // vip stands in for everybody
		{"everybody vip", "OK: OK OK"},
		{"vip everybody", "OK: OK OK"},
		{"everybody vip", "OVER_LIMIT: OK OVER_LIMIT"},
	} {
		if got := ask(t, conn, strings.Fields(step.ask)...); got != step.want {
			t.Errorf("step %d: %s answered %q, want %q", i+1, step.ask, got, step.want)
		}
	}
}

func TestUnixSocket(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "s")
	if len(socket) > 100 {
		t.Fatalf("%s is too long for a socket", socket)
	}
	startWeir(t, ruleFile(t, modes), "--grpc-addr", "unix:"+socket)
	conn := dial(t, "unix:"+socket)
	if got, want := ask(t, conn, "everybody"), "OK: OK"; got != want {
		t.Errorf("answered %q, want %q", got, want)
	}
	for _, service := range []string{"", pb.RateLimitService_ServiceDesc.ServiceName} {
		resp, err := grpc_health_v1.NewHealthClient(conn).Check(t.Context(),
			&grpc_health_v1.HealthCheckRequest{Service: service})
		if err != nil || resp.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
			t.Errorf("health of %q: %v, %v", service, resp, err)
		}
	}
}
