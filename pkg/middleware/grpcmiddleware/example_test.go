package grpcmiddleware_test

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
	"github.com/weir-ratelimit/weir/pkg/middleware"
	"github.com/weir-ratelimit/weir/pkg/middleware/grpcmiddleware"
)

// Each user may make 100 calls a minute of a gRPC server; a call without a user is not limited.
func ExampleUnaryServerInterceptor() {
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	perUser, err := limiter.New(store, "user", limiter.NewTokenBucket(100, time.Minute, 0))
	if err != nil {
		fmt.Println(err)
		return
	}
	user := func(ctx context.Context, _ string) string {
		values := metadata.ValueFromIncomingContext(ctx, "user")
		if len(values) == 0 {
			return ""
		}
		return values[0]
	}
	server := grpc.NewServer(
		grpc.UnaryInterceptor(grpcmiddleware.UnaryServerInterceptor(perUser, user, middleware.Options{})),
		grpc.StreamInterceptor(grpcmiddleware.StreamServerInterceptor(perUser, user, middleware.Options{})),
	)
	defer server.Stop()
	// pb.RegisterYourServer(server, ...), server.Serve(listener)
	fmt.Println(perUser.Policies()[0].Limit(), "calls per", perUser.Policies()[0].Window())
	// Output: 100 calls per 1m0s
}
