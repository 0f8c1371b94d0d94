package descriptors_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
)

// Make rules without a rule file, and find the rule for a descriptor.
func ExampleCompile() {
	set, err := descriptors.Compile(map[string][]*descriptors.Descriptor{"shop": {
		{Key: "remote_address", RateLimit: &descriptors.RateLimit{
			Params: limiter.Params{Algorithm: limiter.Funnel, Limit: 10, Burst: 20}, Unit: descriptors.Second,
		}},
		{Key: "api_key", HashValues: true, Descriptors: []*descriptors.Descriptor{
			{Key: "path", Value: "/checkout*", RateLimit: &descriptors.RateLimit{
				Params: limiter.Params{Limit: 3}, Unit: descriptors.Minute,
			}},
		}},
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	entries := []descriptors.Entry{{Key: "remote_address", Value: "10.0.0.1"}}
	rule, ok := set.Match("shop", entries)
	fmt.Println(ok, rule.Path(), rule.Limits()[0])
	fmt.Println(string(rule.Limits()[0].AppendKey(nil, entries)))
	_, ok = set.Match("shop", []descriptors.Entry{{Key: "country", Value: "AT"}})
	fmt.Println(ok)
	// Output:
	// true remote_address funnel: 10 per 1s, burst 20
	// funnel|shop|remote_address=10.0.0.1
	// false
}

// Each error names the domain and the rule.
func ExampleErrors() {
	_, err := descriptors.Compile(map[string][]*descriptors.Descriptor{"shop": {
		{Key: "user", RateLimit: &descriptors.RateLimit{
			Params: limiter.Params{Limit: 3, Burst: 5}, Unit: descriptors.Minute,
		}},
	}})
	if all, ok := errors.AsType[descriptors.Errors](err); ok {
		fmt.Println(len(all), all[0].File)
	}
	fmt.Println(err)
	// Output:
	// 1 shop: user
	// shop: user: burst is not a parameter of fixed_window, which takes align, time_zone, charge_denied
}

// An exact value takes precedence over patterns in their order, and these over the key alone.
func ExampleSet_Match() {
	limit := func(n int64) *descriptors.RateLimit {
		return &descriptors.RateLimit{Params: limiter.Params{Limit: n}, Unit: descriptors.Minute}
	}
	set, err := descriptors.Compile(map[string][]*descriptors.Descriptor{"shop": {
		{Key: "path", RateLimit: limit(100)},
		{Key: "path", Value: "/api/*", RateLimit: limit(50)},
		{Key: "path", Value: "/api/login", RateLimit: limit(5)},
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, path := range []string{"/api/login", "/api/search", "/"} {
		rule, _ := set.Match("shop", []descriptors.Entry{{Key: "path", Value: path}})
		fmt.Println(path, "reaches", rule.Path(), "with", rule.Limits()[0])
	}
	// Output:
	// /api/login reaches path=/api/login with fixed_window: 5 per 1m
	// /api/search reaches path=/api/* with fixed_window: 50 per 1m
	// / reaches path with fixed_window: 100 per 1m
}

// A Matcher selects values in other ways than one value or a pattern with *.
func ExampleMatcher() {
	limit := &descriptors.RateLimit{Params: limiter.Params{Limit: 1}, Unit: descriptors.Minute}
	set, err := descriptors.Compile(map[string][]*descriptors.Descriptor{"shop": {
		{Key: "country", Match: descriptors.OneOf("AT", "DE"), RateLimit: limit},
		{Key: "remote_address", Match: descriptors.InBlocks("10.0.0.0/8"), RateLimit: limit},
		{Key: "user", Match: descriptors.MatchingRegex("bot-[0-9]+"), RateLimit: limit},
	}})
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
		_, ok := set.Match("shop", []descriptors.Entry{entry})
		fmt.Println(entry.Key, entry.Value, ok)
	}
	// Output:
	// country DE true
	// country CH false
	// remote_address 10.1.2.3 true
	// user bot-7 true
	// user robot-7 false
}

// All limits of a request are charged, or none. AppendHits leaves out a limit that another limit replaces.
func ExampleSet_AppendHits() {
	limit := func(name string, n int64, replaces ...descriptors.Text) *descriptors.RateLimit {
		return &descriptors.RateLimit{
			Name: name, Replaces: replaces, Params: limiter.Params{Limit: n}, Unit: descriptors.Day,
		}
	}
	set, err := descriptors.Compile(map[string][]*descriptors.Descriptor{"shop": {
		{Key: "user", RateLimit: limit("usual", 1)},
		{Key: "user", Value: "ann", RateLimit: limit("", 2)},
		{Key: "plan", Value: "large", RateLimit: limit("", 3, descriptors.Text{Text: "usual"})},
		{Key: "path", Value: "/api/*", ShadowMode: true, RateLimit: limit("", 1)},
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
	ask := func(request ...[]descriptors.Entry) {
		hits := set.AppendHits(nil, "shop", 1, request...)
		decisions := make([]limiter.Decision, len(hits))
		if err := store.Take(context.Background(), hits, decisions); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(limiter.Admitted(hits, decisions), hits[0].Key, len(hits))
	}
	search := []descriptors.Entry{{Key: "path", Value: "/api/search"}}
	for range 3 {
		ask([]descriptors.Entry{{Key: "user", Value: "ann"}}, search)
	}
	ask([]descriptors.Entry{{Key: "user", Value: "bob"}}, []descriptors.Entry{{Key: "plan", Value: "large"}})
	// Output:
	// true fixed_window|shop|user=ann 2
	// true fixed_window|shop|user=ann 2
	// false fixed_window|shop|user=ann 2
	// true fixed_window|shop|plan=large 1
}

// What a rule says besides how it counts: to people, to programs, and to clients that it denies.
func ExampleRule() {
	set, err := descriptors.Compile(map[string][]*descriptors.Descriptor{"shop": {{
		Key: "plan", QuotaMode: true, Metadata: map[string]any{"backend": "large"},
		Response: &descriptors.Response{Headers: []descriptors.Header{{Name: "X-Plan", Value: "free"}}, Body: "wait"},
		RateLimit: &descriptors.RateLimit{
			Name: "per-plan", Params: limiter.Params{Limit: 3}, Unit: descriptors.Hour,
		},
	}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(set.Domains(), len(set.Warnings()))
	rule, _ := set.Match("shop", []descriptors.Entry{{Key: "plan", Value: "free"}})
	fmt.Println(rule.Source(), rule.Mode() == limiter.Quota, rule.Metadata())
	response := rule.Response()
	fmt.Println(response.Headers[0].Name, response.Headers[0].Value, response.Body)
	limit := rule.Limits()[0]
	fmt.Println(limit.Name(), limit.Policy().Limit(), limit.OnStoreFailure())
	// Output:
	// [shop] 0
	// shop: plan true map[backend:large]
	// X-Plan free wait
	// per-plan 3 local
}
