//go:build e2e

package peer

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"

	"github.com/weir-ratelimit/weir/internal/test/partnertest"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// aiGatewayRules are what the translator makes of quotas for a model, for all models of a backend, and of bucket rules.
// Older translators send them without quota mode, as does each translator to the peer, which ignores that field of xDS.
func aiGatewayRules(quotaMode bool) *ratelimitv3.RateLimitConfig {
	const model, backend = "model_name_override", "backend_name"
	bucket := func(key, value string, n uint32, unit ratelimitv3.RateLimitUnit) *ratelimitv3.RateLimitDescriptor {
		d := partnertest.Limit(key, value, n)
		d.RateLimit.Unit, d.QuotaMode = unit, quotaMode
		return d
	}
	shadow := bucket("rule-1-match-0", "rule-1-match-0", 3, ratelimitv3.RateLimitUnit_HOUR)
	shadow.ShadowMode = true
	return partnertest.Domain("ai-gateway-quota",
		partnertest.Node(backend, "default/one",
			bucket(model, "quota-test-model", 10, ratelimitv3.RateLimitUnit_HOUR),
			bucket(model, "", 100, ratelimitv3.RateLimitUnit_DAY)),
		partnertest.Node(backend, "default/two", bucket(model, "quota-test-model", 20, ratelimitv3.RateLimitUnit_HOUR)),
		partnertest.Node(backend, "team/short",
			bucket(model, "second", 5, ratelimitv3.RateLimitUnit_SECOND),
			bucket(model, "minute", 5, ratelimitv3.RateLimitUnit_MINUTE)),
		partnertest.Node(backend, "team/rules", partnertest.Node(model, "m",
			partnertest.Node("rule-0-x-org|acme-match-0", "rule-0-x-org|acme-match-0",
				bucket("rule-0-x-tenant-match-1", "", 6, ratelimitv3.RateLimitUnit_HOUR)),
			shadow,
			bucket("rule-2-match--1", "rule-2-match--1", 8, ratelimitv3.RateLimitUnit_DAY))),
	)
}

// aiGatewaySteps are calls in the form of Envoy's: a start names all backends of its route and has no cost, and an end
// names one backend and its tokens. Each has the answer of both services without quota mode, and the answer of Weir
// with quota mode: by the gateway's documentation, a request is denied only if all of its buckets are exceeded.
func aiGatewaySteps() [][3]string {
	const (
		one, two = "backend_name=default/one,model_name_override=", "backend_name=default/two,model_name_override="
		tested   = one + "quota-test-model"
		short    = "backend_name=team/short,model_name_override="
		ruled    = "backend_name=team/rules,model_name_override=m,"
		tenant   = ruled + "rule-0-x-org|acme-match-0=rule-0-x-org|acme-match-0,rule-0-x-tenant-match-1="
		shadow   = ruled + "rule-1-match-0=rule-1-match-0"
		usual    = ruled + "rule-2-match--1=rule-2-match--1"
	)
	return [][3]string{
		{tested, "OK - OK 9/10 HOUR", "OK - OK 9/10 HOUR"},
		// as in a test of the gateway, with 10 an hour
		{
			tested + "+20",
			"OVER_LIMIT - OVER_LIMIT 0/10 HOUR",
			"OVER_LIMIT - OVER_LIMIT 0/10 HOUR",
		},
		{tested, "OVER_LIMIT - OVER_LIMIT 0/10 HOUR", "OVER_LIMIT - OVER_LIMIT 0/10 HOUR"},
		// the other backend has room
		{
			tested + " " + two + "quota-test-model",
			"OVER_LIMIT - OVER_LIMIT 0/10 HOUR - OK 19/20 HOUR",
			"OK - OVER_LIMIT 0/10 HOUR - OK 19/20 HOUR",
		},
		{one + "another", "OK - OK 99/100 DAY", "OK - OK 99/100 DAY"},
		{one + "another+40", "OK - OK 59/100 DAY", "OK - OK 59/100 DAY"},
		{two + "another", "OK - OK", "OK - OK"}, // no quota
		{short + "second", "OK - OK 4/5 SECOND", "OK - OK 4/5 SECOND"},
		{short + "minute", "OK - OK 4/5 MINUTE", "OK - OK 4/5 MINUTE"},
		{
			tenant + "a " + shadow + " " + usual,
			"OK - OK 5/6 HOUR - OK 2/3 HOUR - OK 7/8 DAY",
			"OK - OK 5/6 HOUR - OK 2/3 HOUR - OK 7/8 DAY",
		},
		{
			tenant + "a+6 " + shadow + "+6 " + usual + "+6",
			"OVER_LIMIT - OVER_LIMIT 0/6 HOUR - OK 0/3 HOUR - OK 1/8 DAY",
			"OK - OVER_LIMIT 0/6 HOUR - OK 0/3 HOUR - OK 1/8 DAY",
		},
		{
			tenant + "a " + shadow + " " + usual,
			"OVER_LIMIT - OVER_LIMIT 0/6 HOUR - OK 0/3 HOUR - OK 0/8 DAY",
			"OK - OVER_LIMIT 0/6 HOUR - OK 0/3 HOUR - OK 0/8 DAY",
		},
		{
			tenant + "b " + shadow + " " + usual,
			"OVER_LIMIT - OK 5/6 HOUR - OK 0/3 HOUR - OVER_LIMIT 0/8 DAY",
			"OK - OK 5/6 HOUR - OK 0/3 HOUR - OVER_LIMIT 0/8 DAY",
		},
		{usual + "+9", "OVER_LIMIT - OVER_LIMIT 0/8 DAY", "OVER_LIMIT - OVER_LIMIT 0/8 DAY"},
		// a bucket in shadow mode is never exceeded
		{
			tenant + "a " + shadow + " " + usual,
			"OVER_LIMIT - OVER_LIMIT 0/6 HOUR - OK 0/3 HOUR - OVER_LIMIT 0/8 DAY",
			"OK - OVER_LIMIT 0/6 HOUR - OK 0/3 HOUR - OVER_LIMIT 0/8 DAY",
		},
		{
			tenant + "a " + usual,
			"OVER_LIMIT - OVER_LIMIT 0/6 HOUR - OVER_LIMIT 0/8 DAY",
			"OVER_LIMIT - OVER_LIMIT 0/6 HOUR - OVER_LIMIT 0/8 DAY",
		},
	}
}

// TestAIGatewayQuotas plays the calls of Envoy AI Gateway's QuotaPolicy, with the gateway's rules by xDS.
func TestAIGatewayQuotas(t *testing.T) {
	t.Parallel()
	settings := env{"CONFIG_TYPE": "GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_NODE_ID": "envoy-ai-gateway-ratelimit"}
	begin := func(name, binary string, quotaMode bool) *service {
		plane := partnertest.StartControlPlane(t, partnertest.ControlPlaneOptions{})
		plane.Set("1", aiGatewayRules(quotaMode))
		s := startService(t, name, binary, t.TempDir(), settings.with(env{"CONFIG_GRPC_XDS_SERVER_URL": plane.Addr}))
		(&follower{service: s, plane: plane}).await(t, "rules", patience, func() bool {
			return s.ask(t.Context(), request(t, "ai-gateway-quota", "backend_name=team/ready")).err == nil
		})
		return s
	}
	binary := weirAsRatelimit(t)
	both := &series{pair: &pair{
		peer: begin("peer", proctest.Program(t, "service_cmd"), false), weir: begin("weir", binary, false), settings: settings,
	}}
	shared := begin("weir with quota mode", binary, true)
	for i, step := range aiGatewaySteps() {
		req := request(t, "ai-gateway-quota", step[0])
		peer, weir := both.ask(t.Context(), req)
		for _, diff := range unexplained(differences(peer, weir), peer, weir, settings) {
			t.Errorf("call %d, %s: %s", i, step[0], diff)
		}
		if got := [3]string{step[0], weir.short(), shared.ask(t.Context(), req).short()}; got != step {
			t.Errorf("call %d:\n got %q\nwant %q", i, got, step)
		}
	}
}

// TestAIGatewayTokens plays the token limits of docs/start/ai-gateway.md: its defaults give a limit of the gateway a
// reservation whose ends are known by their cost. Weir gets the defaults in WEIR_RULES, as the page says.
func TestAIGatewayTokens(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/start/ai-gateway.md")
	if err != nil {
		t.Fatal(err)
	}
	defaults := regexp.MustCompile("(?ms)^```yaml\n(defaults:.*?)^```$").FindSubmatch(page)
	if defaults == nil {
		t.Fatal("the page has no defaults")
	}
	file := filepath.Join(t.TempDir(), "defaults.yaml")
	if err := os.WriteFile(file, defaults[1], 0o600); err != nil {
		t.Fatal(err)
	}
	plane := partnertest.StartControlPlane(t, partnertest.ControlPlaneOptions{})
	plane.Set("1", partnertest.Domain("default/eg/http", partnertest.Limit("user", "", 10_000)))
	s := startService(t, "weir", weirAsRatelimit(t), t.TempDir(), env{
		"CONFIG_TYPE": "GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL": plane.Addr, "WEIR_RULES": file + ",xds",
	})
	f := &follower{service: s, plane: plane}
	f.await(t, "rules", patience, func() bool {
		return s.ask(t.Context(), request(t, "default/eg/http", "user=0")).short() == "OK - OK 9000/10000 HOUR"
	})
	for _, step := range [][2]string{
		{"user=1+1", "OK - OK 9000/10000 HOUR"},
		{"user=1", "OK - OK 8000/10000 HOUR"},
		{"user=1+0", "OK - OK 8000/10000 HOUR"},
		{"user=1+400", "OK - OK 8600/10000 HOUR"},
		{"user=1+3000", "OK - OK 6600/10000 HOUR"},
	} {
		if got := s.ask(t.Context(), request(t, "default/eg/http", step[0])).short(); got != step[1] {
			t.Errorf("%s: %s, want %s", step[0], got, step[1])
		}
	}
}
