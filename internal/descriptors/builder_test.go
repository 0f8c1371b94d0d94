package descriptors_test

import (
	_ "embed"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/internal/offline"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

//go:embed testdata/built.yaml
var builtRules string

// built are the rules of builtRules, made in Go.
func built() *descriptors.Builder {
	type limit = descriptors.RateLimit
	b := descriptors.NewBuilder(descriptors.Process{})
	b.Add("shop",
		&descriptors.Descriptor{
			Key: "api_key", Value: "gold", QuotaMode: true, DetailedMetric: true,
			Description: "customers who pay", Owner: "team-shop",
			Metadata: map[string]any{"tier": "gold", "n": 1.0}, Extra: map[string]any{"x-ticket": 7.0},
			Response: &descriptors.Response{Body: "later", Headers: []descriptors.Header{{Name: "x-why", Value: "limited"}}},
			RateLimits: []*limit{
				{
					Name: "fast", Unit: descriptors.Second, OnStoreFailure: new(descriptors.Deny),
					Params: limiter.Params{Algorithm: limiter.TokenBucket, Limit: 10, Burst: 30},
				},
				{
					Name: "slow", Unit: descriptors.Day, UnitMultiplier: 2, Params: limiter.Params{Limit: 1000},
					Replaces: descriptors.Texts("fast"),
				},
			},
			Descriptors: []*descriptors.Descriptor{
				{
					Key: "path", Value: "/checkout*", ShareThreshold: true,
					RateLimit: &limit{Params: limiter.Params{Algorithm: limiter.SlidingWindow, Limit: 3, Window: 90 * time.Second}},
				},
				{
					Key: "path", Match: descriptors.MatchingRegex("/item/[0-9]+"),
					RateLimit: &limit{Params: limiter.NewConcurrency(3, 30*time.Second)},
				},
				{Key: "path", RateLimit: &limit{Unlimited: true}},
			},
		},
		&descriptors.Descriptor{
			Key: "user", Match: descriptors.OneOf("alice", "bob"), HashValues: true, ShadowMode: true,
			RateLimit: &limit{Unit: descriptors.Hour, Params: limiter.Params{DenyAll: true}},
		},
		&descriptors.Descriptor{
			Key: "address", Match: descriptors.InBlocks("10.0.0.0/8", "2001:db8::/32"), ValueToMetric: true,
			RateLimit: &limit{Unit: descriptors.Minute, Params: limiter.Params{Limit: 5}},
		},
	)
	b.Add("api", &descriptors.Descriptor{Key: "none"})
	return b
}

// A set that is built in Go equals the set of the same rules in a file.
func TestBuilderEqualsFile(t *testing.T) {
	fromFile := casetest.Compile(t, builtRules)
	fromGo, err := built().Build()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := fromGo.Domain("shop").Rules()[0].Source, "shop: api_key=gold"; got != want {
		t.Errorf("the source of a rule that is made in Go is %s, want %s", got, want)
	}
	if changes := offline.Changes(fromFile, fromGo); len(changes) > 0 {
		t.Errorf("the sets differ: %+v", changes)
	}
	for _, d := range fromFile.Domains() {
		other := fromGo.Domain(d.Name()).Rules()
		for i, r := range d.Rules() {
			r.Source, other[i].Source = "", ""
		}
	}
	want, err1 := json.Marshal(fromFile.Domain("shop").Rules())
	got, err2 := json.Marshal(fromGo.Domain("shop").Rules())
	if diff := cmp.Diff(string(want), string(got)); diff != "" || err1 != nil || err2 != nil {
		t.Errorf("JSON: %v, %v -file +Go\n%s", err1, err2, diff)
	}
	for _, text := range []string{
		"api_key=gold", "api_key=gold path=/checkout/1", "api_key=gold path=/item/7", "user=bob", "address=10.1.2.3",
	} {
		es := casetest.Entries(text)
		r, other := fromFile.Domain("shop").Match(es), fromGo.Domain("shop").Match(es)
		if r == nil || other == nil || r.Path != other.Path || len(r.Limits) != len(other.Limits) {
			t.Fatalf("%s matches %+v of the file, and %+v", text, r, other)
		}
		for i, l := range r.Limits {
			if want, got := string(l.AppendKey(nil, es)), string(other.Limits[i].AppendKey(nil, es)); want != got {
				t.Errorf("the key of %s is %s, want %s", text, got, want)
			}
			if o := other.Limits[i]; limit.Identity(l.Policy) != limit.Identity(o.Policy) || l.Placement() != o.Placement() {
				t.Errorf("limit %d of %s has another policy or place", i, text)
			}
		}
	}
}

// Errors of a Builder name the domain and the path if there is no file.
func TestBuilderProblems(t *testing.T) {
	type limit = descriptors.RateLimit
	for _, tt := range []struct {
		domain string
		rule   descriptors.Descriptor
		want   string
	}{
		{"", descriptors.Descriptor{Key: "a"}, "no domain: a: the domain is empty"},
		{"d", descriptors.Descriptor{}, "d: : the key is empty"},
		{"d", descriptors.Descriptor{Key: "a*"}, "d: a*: key a* contains *"},
		{"d", descriptors.Descriptor{Key: "a", Match: descriptors.OneOf()}, "d: a values : values is empty"},
		{"d", descriptors.Descriptor{Key: "a", Match: descriptors.OneOf("b", "")}, "d: a values b, : an item of values is empty"},
		{"d", descriptors.Descriptor{Key: "a", Match: descriptors.Matcher{Form: "ip"}}, "d: a ip : ip is not a form of a Matcher"},
		{"d", descriptors.Descriptor{Key: "a", Value: "b", Match: descriptors.OneOf("c")}, "value and values are both given"},
		{
			"d",
			descriptors.Descriptor{Key: "a", Match: descriptors.MatchingRegex("(")},
			"d: a regex (: regex: missing closing )",
		},
		{
			"d",
			descriptors.Descriptor{Key: "a", RateLimit: &limit{
				Params: limiter.Params{Limit: 1}, Unit: descriptors.Day, Placement: descriptors.Placement{RedisCell: true},
			}},
			"d: a: engine: the redis_cell engine supports only funnel and token_bucket",
		},
		// What files say, too, is in the goldens of rulefile; here it is the place.
		{"d", descriptors.Descriptor{Key: "a", RateLimit: &limit{Params: limiter.Params{Limit: 1}}}, "d: a: unit is missing"},
		{
			"d",
			descriptors.Descriptor{Key: "a", Descriptors: []*descriptors.Descriptor{{Key: "b"}, {Key: "b"}}},
			"d: a > b: a > b is already given at d: a > b",
		},
	} {
		b := descriptors.NewBuilder(descriptors.Process{})
		b.Add(tt.domain, &tt.rule)
		_, err := b.Build()
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v, want %s", tt.rule, err, tt.want)
		}
	}
}
