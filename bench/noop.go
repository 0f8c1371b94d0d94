package main

import (
	"context"
	"net"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
)

// noop responds with OK to every request: it shows the cost of grpc-go.
type noop struct {
	pb.UnimplementedRateLimitServiceServer
}

var pass = &pb.RateLimitResponse{OverallCode: pb.RateLimitResponse_OK}

// ShouldRateLimit implements pb.RateLimitServiceServer.
func (noop) ShouldRateLimit(context.Context, *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	return pass, nil
}

// serveNoop serves noop with grpc-go's default options until ctx is done.
func serveNoop(ctx context.Context, addr string) error {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	s := grpc.NewServer()
	pb.RegisterRateLimitServiceServer(s, noop{})
	context.AfterFunc(ctx, s.Stop)
	return s.Serve(l)
}
