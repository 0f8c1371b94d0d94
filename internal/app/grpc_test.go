package app

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// dial is a connection of its own to the process.
func (p *process) dial() *grpc.ClientConn {
	p.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+p.app.GRPCAddr(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			p.t.Error(err)
		}
	})
	return conn
}

func TestHealthHasAllNames(t *testing.T) {
	p := start(t, options(t, rulesOf("1")))
	for _, service := range []string{"", "envoy.service.ratelimit.v3.RateLimitService", "ratelimit"} {
		res, err := p.health.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service}, grpc.WaitForReady(true))
		if err != nil || res.GetStatus() != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("%q: %v, %v", service, res, err)
		}
	}
	_, err := p.health.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "another"})
	if status.Code(err) != codes.NotFound {
		t.Errorf("health of another service: %v, want NotFound", err)
	}
}

// Clients connect again after the age of a connection, so that they spread over all replicas.
func TestConnectionAge(t *testing.T) {
	t.Parallel()
	o := options(t, rulesOf("100"))
	o.GRPCMaxConnectionAge = time.Second
	p := start(t, o)
	conn := p.dial()
	health := healthpb.NewHealthClient(conn)
	if _, err := health.Check(t.Context(), &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if !conn.WaitForStateChange(ctx, connectivity.Ready) {
		t.Fatalf("the connection is still open after %s, with an age of 1s", patience)
	}
	if _, err := health.Check(ctx, &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Errorf("over a new connection: %v", err)
	}
}
