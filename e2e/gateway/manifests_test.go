//go:build e2e

package gateway

import (
	"fmt"
	"strings"
)

// rateLimitCase is one policy on routes of its own, so that cases share no counter.
type rateLimitCase struct {
	name   string   // of the policy, of its route, and of the path's first part
	routes []string // other routes in place of the one called like the policy
	rules  string   // of the BackendTrafficPolicy, as a list of YAML
	script string   // Lua that sets the metadata from which costs and limits come
}

// The windows are a year, so that none ends while the test runs, except where the header shows the unit.
var cases = []rateLimitCase{
	{
		name:  "distinct",
		rules: `[{clientSelectors: [{headers: [{name: x-user-id, type: Distinct}]}], limit: {requests: 3, unit: Hour}}]`,
	},
	{
		name: "combined",
		rules: `[{clientSelectors: [{
			methods: [{value: POST}],
			path: {type: PathPrefix, value: /combined/orders},
			queryParams: [{name: q, type: Exact, value: "1"}],
			headers: [
				{name: x-org, type: RegularExpression, value: "a.*"},
				{name: x-test, type: Exact, value: "1", invert: true}]
		}], limit: {requests: 1, unit: Year}}]`,
	},
	{
		name:  "cidr",
		rules: `[{clientSelectors: [{sourceCIDR: {value: 198.51.100.0/24}}], limit: {requests: 2, unit: Year}}]`,
	},
	{
		name:  "inverted",
		rules: `[{clientSelectors: [{sourceCIDR: {value: 192.0.2.0/24, invert: true}}], limit: {requests: 2, unit: Year}}]`,
	},
	{
		name: "address",
		rules: `[{clientSelectors: [{sourceCIDR: {type: Distinct, value: 203.0.113.0/24}}],
			limit: {requests: 1, unit: Month}}]`,
	},
	{
		name: "cost",
		rules: `[{limit: {requests: 10, unit: Year},
			cost: {request: {from: Metadata, metadata: {namespace: test.costs, key: request}}}}]`,
		script: `function envoy_on_request(handle)
  local cost = handle:headers():get("x-cost")
  if cost ~= nil then
    handle:streamInfo():dynamicMetadata():set("test.costs", "request", tonumber(cost))
  end
end`,
	},
	{
		name: "usage",
		rules: `[
			{clientSelectors: [{headers: [{name: x-user-id, type: Distinct}]}],
				limit: {requests: 25, unit: Year}, ` + usage + `},
			{clientSelectors: [{headers: [{name: x-team, type: Distinct}]}],
				limit: {requests: 15, unit: Year}, ` + usage + `},
			{limit: {requests: 1000, unit: Year}, ` + usage + `}]`,
		script: `function envoy_on_response(handle)
  local cost = handle:headers():get("x-usage")
  if cost ~= nil then
    handle:streamInfo():dynamicMetadata():set("test.costs", "usage", tonumber(cost))
  end
end`,
	},
	{
		name: "plan",
		rules: `[{clientSelectors: [{headers: [{name: x-user-id, type: Distinct}]}],
			limit: {requests: 2, unit: Year, fromMetadata: {namespace: test.limits, key: plan}}}]`,
		script: `function envoy_on_request(handle)
  local plan = handle:headers():get("x-plan")
  if plan ~= nil then
    local limit = {requests_per_unit = tonumber(plan), unit = "YEAR"}
    handle:streamInfo():dynamicMetadata():set("test.limits", "plan", limit)
  end
end`,
	},
	{
		name:  "shadow",
		rules: `[{shadowMode: true, limit: {requests: 1, unit: Year}}]`,
	},
	{
		name:   "shared",
		routes: []string{"shared-a", "shared-b"},
		rules: `[{shared: true, clientSelectors: [{headers: [{name: x-user-id, type: Distinct}]}],
			limit: {requests: 3, unit: Year}}]`,
	},
	{
		name:  "nothing",
		rules: `[{limit: {requests: 0, unit: Week}}]`,
	},
}

// usage looks at a limit, and charges it when the response has ended.
const usage = `cost: {request: {from: Number, number: 0},
	response: {from: Metadata, metadata: {namespace: test.costs, key: usage}}}`

// twice is a rule set that envoyproxy/ratelimit refuses: the gateway makes two descriptors of the same key and value.
// One has a limit, the other one a limit below it.
var twice = rateLimitCase{
	name: "twice",
	rules: `[{clientSelectors: [{sourceCIDR: {value: 198.51.100.0/24}}], limit: {requests: 5, unit: Year}},
		{clientSelectors: [{sourceCIDR: {type: Distinct, value: 198.51.100.0/24}}], limit: {requests: 3, unit: Year}}]`,
}

func (c rateLimitCase) paths() []string {
	if c.routes == nil {
		return []string{c.name}
	}
	return c.routes
}

// manifest has the routes, the policy and the script.
func (c rateLimitCase) manifest() string {
	var b strings.Builder
	var targets []string
	for _, route := range c.paths() {
		fmt.Fprintf(&b, `
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: %[1]s, namespace: default}
spec:
  parentRefs: [{name: eg}]
  rules:
    - matches: [{path: {type: PathPrefix, value: /%[1]s}}]
      backendRefs: [{group: gateway.envoyproxy.io, kind: Backend, name: backend}]
---`, route)
		targets = append(targets, fmt.Sprintf("{group: gateway.networking.k8s.io, kind: HTTPRoute, name: %s}", route))
	}
	fmt.Fprintf(&b, `
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: BackendTrafficPolicy
metadata: {name: %s, namespace: default}
spec:
  targetRefs: [%s]
  rateLimit: {type: Global, global: {rules: %s}}
`, c.name, strings.Join(targets, ", "), strings.ReplaceAll(c.rules, "\t", "  "))
	if c.script != "" {
		fmt.Fprintf(&b, `---
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: EnvoyExtensionPolicy
metadata: {name: %s, namespace: default}
spec:
  targetRefs: [%s]
  lua: [{type: Inline, inline: %q}]
`, c.name, strings.Join(targets, ", "), c.script)
	}
	return b.String()
}
