package middleware_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
	"github.com/weir-ratelimit/weir/pkg/middleware"
)

// Each address may send 1 request an hour to a handler.
func ExampleHTTP() {
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	policy, err := limiter.NewPolicy(limiter.Params{Algorithm: limiter.Funnel, Limit: 1, Window: time.Hour})
	if err != nil {
		fmt.Println(err)
		return
	}
	perClient := middleware.HTTP(limiter.New(store, policy), middleware.RemoteIP, middleware.Options{})
	handler := perClient(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }))

	for range 2 {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		fmt.Printf("%d %s, Retry-After %q\n", w.Code, w.Header().Get("RateLimit"), w.Header().Get("Retry-After"))
	}
	// Output:
	// 200 "funnel";r=0;t=3600, Retry-After ""
	// 429 "funnel";r=0;t=3600, Retry-After "3600"
}

// Each user may make 100 calls a minute of a gRPC server; a call without a user is not limited.
func ExampleUnaryServerInterceptor() {
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	policy, err := limiter.NewPolicy(limiter.Params{Algorithm: limiter.TokenBucket, Limit: 100, Window: time.Minute})
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
	perUser := limiter.New(store, policy)
	server := grpc.NewServer(
		grpc.UnaryInterceptor(middleware.UnaryServerInterceptor(perUser, user, middleware.Options{})),
		grpc.StreamInterceptor(middleware.StreamServerInterceptor(perUser, user, middleware.Options{})),
	)
	defer server.Stop()
	// pb.RegisterYourServer(server, ...), server.Serve(listener)
	fmt.Println(perUser.Policies()[0].Limit(), "calls per", perUser.Policies()[0].Window())
	// Output: 100 calls per 1m0s
}

// Behind a proxy, the key is what the proxy says of the client, and a store that fails denies requests.
func ExampleOptions() {
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	policy, err := limiter.NewPolicy(limiter.Params{Algorithm: limiter.Funnel, Limit: 5, Window: time.Second})
	if err != nil {
		fmt.Println(err)
		return
	}
	limited := middleware.HTTP(limiter.New(store, policy),
		func(r *http.Request) string { return r.Header.Get("X-Envoy-External-Address") },
		middleware.Options{
			FailClosed: true,
			OnError:    func(err error) { fmt.Println("the store fails:", err) },
		})
	handler := limited(http.NotFoundHandler())

	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("X-Envoy-External-Address", "192.0.2.7")
	handler.ServeHTTP(w, r)
	fmt.Println(w.Header().Get("RateLimit-Policy"))
	// Output: "funnel";q=5;w=1
}
