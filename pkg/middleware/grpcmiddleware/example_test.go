package grpcmiddleware_test

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
	"github.com/weir-ratelimit/weir/pkg/middleware"
	"github.com/weir-ratelimit/weir/pkg/middleware/grpcmiddleware"
)

// Each user may make 100 calls per minute to a gRPC server. A call without a user is not limited.
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

// Calls are limited by Weir's rules: here 1 an hour for each method of the health service.
func ExampleUnaryServerRules() {
	rules, err := descriptors.Compile(map[string][]*descriptors.Descriptor{"shop": {{
		Key: "method", Value: "/grpc.health.v1.Health/*", Response: &descriptors.Response{Body: "ask less often"},
		RateLimit: &descriptors.RateLimit{
			Params: limiter.Params{Algorithm: limiter.Funnel, Limit: 1}, Unit: descriptors.Hour,
		},
	}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	limited := grpcmiddleware.UnaryServerRules(func() *descriptors.Set { return rules }, store, "shop",
		func(_ context.Context, method string) [][]descriptors.Entry {
			return [][]descriptors.Entry{{{Key: "method", Value: method}}}
		}, middleware.Options{})
	// grpc.NewServer(grpc.UnaryInterceptor(limited)); here the interceptor is called without a server:
	info := &grpc.UnaryServerInfo{FullMethod: "/grpc.health.v1.Health/Check"}
	for range 2 {
		answer, err := limited(context.Background(), nil, info, func(context.Context, any) (any, error) { return "ok", nil })
		fmt.Printf("%v %s %q\n", answer, status.Code(err), status.Convert(err).Message())
	}
	// Output:
	// ok OK ""
	// <nil> ResourceExhausted "ask less often"
}
