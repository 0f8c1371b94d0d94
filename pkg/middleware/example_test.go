package middleware_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
	"github.com/weir-ratelimit/weir/pkg/middleware"
)

// Each address may send one request per hour to a handler.
func ExampleHTTP() {
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	perClient, err := limiter.New(store, "client", limiter.NewFunnel(1, time.Hour, 0))
	if err != nil {
		fmt.Println(err)
		return
	}
	limited := middleware.HTTP(perClient, middleware.RemoteIP, middleware.Options{})
	handler := limited(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }))

	for range 2 {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		fmt.Printf("%d %s, Retry-After %q\n", w.Code, w.Header().Get("RateLimit"), w.Header().Get("Retry-After"))
	}
	// Output:
	// 200 "client";r=0;t=3600, Retry-After ""
	// 429 "client";r=0;t=3600, Retry-After "3600"
}

// Weir's rules limit requests: each address to one per hour, and a path to none.
func ExampleHTTPRules() {
	rules, err := descriptors.Compile(map[string][]*descriptors.Descriptor{"shop": {
		{Key: "remote_address", RateLimit: &descriptors.RateLimit{
			Name: "per_address", Params: limiter.Params{Algorithm: limiter.Funnel, Limit: 1}, Unit: descriptors.Hour,
		}},
		{
			Key: "path", Value: "/admin/*", Response: &descriptors.Response{Body: "closed"},
			RateLimit: &descriptors.RateLimit{
				Params: limiter.Params{Algorithm: limiter.Funnel, DenyAll: true}, Unit: descriptors.Hour,
			},
		},
	}})
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
	limited := middleware.HTTPRules(func() *descriptors.Set { return rules }, store, "shop",
		func(r *http.Request) [][]descriptors.Entry {
			return [][]descriptors.Entry{
				{{Key: "remote_address", Value: middleware.RemoteIP(r)}},
				{{Key: "path", Value: r.URL.Path}},
			}
		}, middleware.Options{})
	handler := limited(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") }))

	for _, path := range []string{"/admin/users", "/", "/"} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		fmt.Printf("%d %s, %s\n", w.Code, strings.TrimSpace(w.Body.String()), w.Header().Get("RateLimit"))
	}
	// Output:
	// 429 closed, "funnel";r=0;t=0
	// 200 hello, "per_address";r=0;t=3600
	// 429 rate limit exceeded, "per_address";r=0;t=3600
}

// Behind a proxy, the key is a header that the proxy sets. If the store fails, requests are denied.
func ExampleOptions() {
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	perClient, err := limiter.New(store, "client", limiter.NewFunnel(5, time.Second, 0))
	if err != nil {
		fmt.Println(err)
		return
	}
	limited := middleware.HTTP(perClient,
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
	// Output: "client";q=5;w=1
}
