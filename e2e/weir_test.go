//go:build e2e

package e2e

import (
	"path/filepath"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// weir is a running `weir serve`.
type weir struct{ *proctest.Weir }

// startWeir serves the rules of a file or folder, with further arguments, and returns when Weir is ready.
func startWeir(t *testing.T, rules string, args ...string) *weir {
	t.Helper()
	s := newWeir(t, rules, args...)
	s.Start()
	return s
}

// newWeir is startWeir without the start.
func newWeir(t *testing.T, rules string, args ...string) *weir {
	t.Helper()
	return &weir{proctest.NewWeir(t, append([]string{"--rules", rules}, args...)...)}
}

// client returns a client of Weir's gRPC service.
func (s *weir) client(t *testing.T) pb.RateLimitServiceClient {
	t.Helper()
	return pb.NewRateLimitServiceClient(dial(t, s.GRPC))
}

// dial connects to a process by a gRPC target.
func dial(t *testing.T, target string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// sum adds a metric up over several processes.
func sum(fleet []*weir, metric string) (all float64) {
	for _, s := range fleet {
		all += s.Metric(metric)
	}
	return all
}

// ruleFile writes a rule file and returns its path.
func ruleFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rules.yaml")
	proctest.Replace(t, path, text)
	return path
}
