package descriptors_test

import (
	"context"
	"fmt"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
)

// A Go program makes rules without a rule file.
func ExampleBuilder() {
	b := descriptors.NewBuilder(descriptors.Process{})
	b.Add("shop",
		&descriptors.Descriptor{
			Key: "remote_address",
			RateLimit: &descriptors.RateLimit{
				Params: limiter.Params{Algorithm: limiter.Funnel, Limit: 10, Burst: 20}, Unit: descriptors.Second,
			},
		},
		&descriptors.Descriptor{
			Key: "api_key", HashValues: true,
			Descriptors: []*descriptors.Descriptor{
				{Key: "path", Value: "/checkout*", RateLimit: &descriptors.RateLimit{
					Params: limiter.Params{Limit: 3}, Unit: descriptors.Minute,
				}},
			},
		},
	)
	set, err := b.Build()
	if err != nil {
		fmt.Println(err)
		return
	}
	request := []descriptors.Entry{{Key: "remote_address", Value: "10.0.0.1"}}
	limit := set.Domain("shop").Match(request).Limits[0]
	fmt.Println(limit.Policy.Algorithm(), limit.Policy.Limit(), "per", limit.Policy.Window())
	fmt.Println(string(limit.AppendKey(nil, request)))
	// Output:
	// funnel 10 per 1s
	// funnel|shop|remote_address=10.0.0.1
}

// Problems name the domain and the rule.
func ExampleBuilder_Build() {
	b := descriptors.NewBuilder(descriptors.Process{})
	b.Add("shop", &descriptors.Descriptor{
		Key:       "user",
		RateLimit: &descriptors.RateLimit{Params: limiter.Params{Limit: 3, Burst: 5}, Unit: descriptors.Minute},
	})
	_, err := b.Build()
	fmt.Println(err)
	// Output:
	// shop: user: burst is not a parameter of fixed_window, which takes align, time_zone, charge_denied
}

// The exact value goes first, then patterns, then the key alone.
func ExampleDomain_Match() {
	b := descriptors.NewBuilder(descriptors.Process{})
	limit := func(n int64) *descriptors.RateLimit {
		return &descriptors.RateLimit{Params: limiter.Params{Limit: n}, Unit: descriptors.Minute}
	}
	b.Add("shop",
		&descriptors.Descriptor{Key: "path", RateLimit: limit(100)},
		&descriptors.Descriptor{Key: "path", Value: "/api/*", RateLimit: limit(50)},
		&descriptors.Descriptor{Key: "path", Value: "/api/login", RateLimit: limit(5)},
	)
	set, err := b.Build()
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, path := range []string{"/api/login", "/api/search", "/"} {
		rule := set.Domain("shop").Match([]descriptors.Entry{{Key: "path", Value: path}})
		fmt.Println(path, "reaches", rule.Path, "with", rule.Limits[0])
	}
	// Output:
	// /api/login reaches path=/api/login with fixed_window: 5 per 1m
	// /api/search reaches path=/api/* with fixed_window: 50 per 1m
	// / reaches path with fixed_window: 100 per 1m
}

// Ways to choose values besides one value and *.
func ExampleMatcher() {
	b := descriptors.NewBuilder(descriptors.Process{})
	limit := &descriptors.RateLimit{Params: limiter.Params{Limit: 1}, Unit: descriptors.Minute}
	b.Add("shop",
		&descriptors.Descriptor{Key: "country", Match: descriptors.OneOf("AT", "DE"), RateLimit: limit},
		&descriptors.Descriptor{Key: "remote_address", Match: descriptors.InBlocks("10.0.0.0/8"), RateLimit: limit},
		&descriptors.Descriptor{Key: "user", Match: descriptors.MatchingRegex("bot-[0-9]+"), RateLimit: limit},
	)
	set, err := b.Build()
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, entry := range []descriptors.Entry{
		{Key: "country", Value: "DE"},
		{Key: "country", Value: "CH"},
		{Key: "remote_address", Value: "10.1.2.3"},
		{Key: "user", Value: "bot-7"},
		{Key: "user", Value: "robot-7"},
	} {
		fmt.Println(entry.Key, entry.Value, set.Domain("shop").Match([]descriptors.Entry{entry}) != nil)
	}
	// Output:
	// country DE true
	// country CH false
	// remote_address 10.1.2.3 true
	// user bot-7 true
	// user robot-7 false
}

// All limits of a request's descriptors are charged together, or none.
func ExampleLimit_AppendKey() {
	b := descriptors.NewBuilder(descriptors.Process{})
	limit := func(n int64) *descriptors.RateLimit {
		return &descriptors.RateLimit{Params: limiter.Params{Limit: n}, Unit: descriptors.Day}
	}
	b.Add("shop",
		&descriptors.Descriptor{Key: "user", RateLimit: limit(2)},
		&descriptors.Descriptor{Key: "path", Value: "/api/*", ShadowMode: true, RateLimit: limit(1)},
	)
	set, err := b.Build()
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
	request := [][]descriptors.Entry{{{Key: "user", Value: "ann"}}, {{Key: "path", Value: "/api/search"}}}
	for range 3 {
		var hits []limiter.Hit
		for i, entries := range request {
			rule := set.Domain("shop").Match(entries)
			if rule == nil {
				continue
			}
			for _, l := range rule.Limits {
				hits = append(hits, limiter.Hit{
					Key: string(l.AppendKey(nil, entries)), Policy: l.Policy, N: 1, Mode: rule.Mode, Group: i, Route: l.Route(),
				})
			}
		}
		out := make([]limiter.Decision, len(hits))
		if err := store.Take(context.Background(), hits, out); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(limiter.Admitted(hits, out), out[0].Allowed, out[1].Allowed)
	}
	// Output:
	// true true true
	// true true false
	// false false false
}

func ExampleParseEntries() {
	entries, err := descriptors.ParseEntries(`api_key=k1,path=/a\,b`)
	fmt.Printf("%q %v\n", entries, err)
	_, err = descriptors.ParseEntries("api_key")
	fmt.Println(err)
	// Output:
	// [{"api_key" "k1"} {"path" "/a,b"}] <nil>
	// entry 1, api_key, has no =; write api_key=VALUE, or api_key= for an empty value
}

// What a counter's key says.
func ExampleParseKey() {
	terms, ok := descriptors.ParseKey("token_bucket:burst|shop|api_key=k1|path=/checkout")
	fmt.Println(ok, terms.Algorithm, terms.Limit, terms.Domain, terms.Entries)
	// Output: true token_bucket :burst shop [{api_key k1} {path /checkout}]
}

// Entries that come without an order, as those of a bucket of Envoy's quota filter, find the rule's.
func ExampleDomain_MatchUnordered() {
	b := descriptors.NewBuilder(descriptors.Process{})
	b.Add("shop", &descriptors.Descriptor{Key: "tenant", Descriptors: []*descriptors.Descriptor{{
		Key: "route", RateLimit: &descriptors.RateLimit{Params: limiter.Params{Limit: 10}, Unit: descriptors.Second},
	}}})
	set, err := b.Build()
	if err != nil {
		fmt.Println(err)
		return
	}
	entries, rule := set.Domain("shop").MatchUnordered([]descriptors.Entry{
		{Key: "route", Value: "/buy"}, {Key: "tenant", Value: "a"},
	})
	fmt.Println(rule.Path, entries)
	// Output: tenant > route [{tenant a} {route /buy}]
}
