package descriptors_test

import (
	"fmt"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
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
