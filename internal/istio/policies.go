package istio

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

const gatewayGroup = "gateway.networking.k8s.io"

// A mesh has the Gateways and routes of the input, and the policies that are attached to them.
type mesh struct {
	*input

	gateways  []*gateway
	missing   map[string][]string  // parents of a route where it has no limits, with the reason, by target
	problems  map[string]string    // why a target of the input can have no limits, or "", by target
	attached  map[string]*policy   // by target
	claims    map[string]string    // contents of the places that have one, by place
	workloads map[string]*workload // by full name
}

// policies returns the workloads of Envoy Gateway's policies.
func (in *input) policies() (all []workload) {
	m := &mesh{
		input: in, missing: map[string][]string{}, problems: map[string]string{}, attached: map[string]*policy{},
		claims: map[string]string{}, workloads: map[string]*workload{},
	}
	m.readGateways(kindGateway)
	m.readGateways(kindIstioGateway)
	m.readRoutes(kindHTTPRoute)
	m.readRoutes(kindGRPCRoute)
	m.readRoutes(kindVirtualService)
	var policies []*policy
	for _, o := range in.objects[kindPolicy] {
		p := in.readPolicy(o)
		for _, t := range p.targets {
			m.assign(p, t)
		}
		policies = append(policies, p)
	}
	for _, g := range m.gateways {
		m.place(g)
	}
	for _, p := range policies {
		if len(p.limits) > 0 && len(p.places) == 0 && p.isAttached {
			in.refuse(p.root, "the policy limits nothing: its targets have no routes, or other policies replace it for all of "+
				"them; add the routes' files, or remove the policy")
		}
		p.report(in)
	}
	for _, w := range m.workloads {
		all = append(all, *w)
	}
	return all
}

// A target is an object, or a section of it, to which a policy is attached.
type target struct {
	at              node
	kind            string // KIND.GROUP
	namespace, name string
	section         string // name of a listener, server or rule; empty for the whole object
}

func (t target) String() string {
	return strings.TrimSpace(fmt.Sprintf("%s %s/%s %s", t.kind, t.namespace, t.name, t.section))
}

// policyOf returns the policy whose target is a section of an object; with section "", the whole object.
func (m *mesh) policyOf(o *object, section string) *policy {
	return m.attached[o.target(section).String()]
}

// kindOf returns KIND.GROUP of a reference; by default, of a Gateway.
func kindOf(ref node) string {
	return cmp.Or(ref.get("kind").text(), "Gateway") + "." + cmp.Or(ref.get("group").text(), gatewayGroup)
}

func (o *object) target(section string) target {
	return target{o.root, o.kind, o.namespace, o.name, section}
}

// readTargets returns the targets of a policy.
func (in *input) readTargets(p *policy, spec node) (all []target) {
	isRead := func(n node) bool {
		kinds := []string{kindGateway, kindHTTPRoute, kindGRPCRoute, kindIstioGateway, kindVirtualService}
		known := slices.Contains(kinds, kindOf(n))
		if p.isLimit && !known {
			in.refuse(n, "Weir does not read %s; write one of %s", kindOf(n), strings.Join(kinds, ", "))
		}
		return known
	}
	for _, n := range append(in.list(spec.get("targetRefs"), "targetRefs"), spec.get("targetRef")) {
		in.only(n, "a target", "group", "kind", "name", "sectionName")
		if n.exists() && isRead(n) {
			all = append(all, target{
				at: n, kind: kindOf(n), namespace: p.namespace, name: n.get("name").text(), section: n.get("sectionName").text(),
			})
		}
	}
	for _, n := range in.list(spec.get("targetSelectors"), "targetSelectors") {
		labels := n.get("matchLabels").labels()
		in.only(n, "a selector of Weir", "group", "kind", "matchLabels", "namespaces")
		in.only(n.get("matchLabels"), "matchLabels", slices.Collect(maps.Keys(labels))...)
		in.only(n.get("namespaces"), "namespaces", "from")
		if !isRead(n) {
			continue
		}
		isAll := in.oneOf(n.get("namespaces"), "from", "Same", "All") == "All"
		for _, o := range in.objects[kindOf(n)] {
			t := target{n, o.kind, o.namespace, o.name, ""}
			switch {
			case !includes(o.root.get("metadata", "labels").labels(), labels):
			case p.namespace == o.namespace, isAll && in.granted(p, t):
				all = append(all, t)
			case isAll:
				p.note("%s is not limited: no ReferenceGrant of its namespace allows this policy", t)
			}
		}
	}
	if len(all) == 0 && p.isLimit {
		in.refuse(p.root, "no object of the input is a target of the policy; write targetRefs, or add the targets' files")
	}
	return all
}

// granted reports whether a ReferenceGrant lets a policy of another namespace select a target.
func (in *input) granted(p *policy, t target) bool {
	has := func(list node, kind, field, value string) bool {
		return slices.ContainsFunc(list.items(), func(n node) bool {
			return n.get("kind").text()+"."+n.get("group").text() == kind && cmp.Or(n.get(field).text(), value) == value
		})
	}
	return slices.ContainsFunc(in.objects[kindGrant], func(g *object) bool {
		return g.namespace == t.namespace && has(g.root.get("spec", "from"), kindPolicy, "namespace", p.namespace) &&
			has(g.root.get("spec", "to"), t.kind, "name", t.name)
	})
}

// assign attaches a policy to a target.
func (m *mesh) assign(p *policy, t target) {
	key := t.String()
	problem, isNamed := m.problems[key]
	whole := target{t.at, t.kind, t.namespace, t.name, ""}.String()
	_, isInInput := m.problems[whole]
	switch {
	case !isInInput:
		problem = "it is not in the input; add its file, or write --selector with the labels of the gateway's pods"
	case !isNamed:
		problem = "the object has no listener, server or rule with this name; write one of its names"
	}
	switch other := m.attached[key]; {
	case !isInInput && len(m.Selector) > 0:
		w := labelledGateway(t.at, rootNamespace, m.Selector)
		m.put(&w, p, list{applyTo: "ROUTE_CONFIGURATION", limits: p.limits}, "all routes")
		p.note("%s is not in the input: the limits are for all routes of the pods that --selector names", t)
	case problem != "" && p.isLimit:
		m.refuse(t.at, "%s cannot have limits: %s", t, problem)
	case p.merge != "" && strings.HasPrefix(t.kind, "Gateway."):
		m.refuse(t.at, "mergeType needs a route as target; remove mergeType")
	case other != nil && other != p && (p.isLimit || other.isLimit):
		m.refuse(t.at, "%s is already the target of %s (%s), and Envoy Gateway would use the older one; write one policy",
			t, other.fullName(), other.root.position())
	default:
		m.attached[key], p.isAttached = p, true
		for _, why := range m.missing[whole] {
			p.note("no effect for %s at %s", t, why)
		}
	}
}

// place puts the limits of a Gateway, its listeners and its routes at their places.
func (m *mesh) place(g *gateway) {
	whole := m.policyOf(g.object, "")
	shares := func(o *gateway) bool { return o != g && o.workload.overlaps(&g.workload) }
	isAlone := !slices.ContainsFunc(m.gateways, shares)
	if limits := whole.over(nil); len(limits) > 0 && isAlone {
		m.put(&g.workload, whole, list{applyTo: "ROUTE_CONFIGURATION", limits: limits}, "all routes of its pods")
	}
	for _, l := range g.listeners {
		for _, host := range slices.Sorted(maps.Keys(l.virtualHosts)) {
			own := m.policyOf(g.object, g.owner(l, host).section)
			parent := cmp.Or(own, whole)
			if parent != nil && (own != nil || !isAlone) {
				parent.note("hosts of routes that are not in the input have no limits")
				of := list{"VIRTUAL_HOST", fields{"vhost": fields{"name": host}}, parent.limits}
				m.put(&g.workload, parent, of, "all routes of "+host)
			}
			for _, rule := range l.virtualHosts[host] {
				if rule.route.kind == kindVirtualService {
					m.claim(fmt.Sprint("hosts", g.fullName(), l.port, rule.route.fullName()), fmt.Sprint(parent.over(nil)),
						rule.route.root, "a policy is for one server of Gateway %s, and Istio unites the hosts of this VirtualService, "+
							"which has hosts of other servers, too; write a VirtualService per server", g.fullName())
				}
				m.placeRule(g, host, rule, parent)
			}
		}
	}
}

// placeRule puts the limits of a route's rule at its place in a virtual host, if the rule or its route has a policy.
func (m *mesh) placeRule(g *gateway, host string, rule *routeRule, parent *policy) {
	p := cmp.Or(m.policyOf(rule.route, rule.section), m.policyOf(rule.route, ""))
	limits := p.over(parent)
	isLimited := len(limits)+len(parent.over(nil)) > 0
	if rule.dead != "" && isLimited {
		cmp.Or(p, parent).note("the rule at %s has no limits: %s", rule.at.position(), rule.dead)
	}
	if rule.dead != "" {
		return
	}
	perRoute := slices.ContainsFunc(limits, func(l limit) bool { return l.isPerRoute() })
	names := slices.Compact(slices.Sorted(slices.Values(rule.names)))
	if len(names) < len(rule.names) && perRoute && !m.OneCounterPerRule {
		m.refuse(rule.at, "the rule has %d matches: Envoy Gateway counts each by itself, and in Istio all have the same "+
			"name; write a rule per match, or shared: true, or --one-counter-per-rule", len(rule.names))
	}
	if names[0] == "" && (perRoute || p != nil && isLimited) {
		m.refuse(rule.at, "the http has no name, so that its route can have no limits of its own; write name:")
	}
	content := ""
	if isLimited && (perRoute || p != nil) {
		content = rule.at.position().String()
	}
	for _, name := range names {
		m.claim(fmt.Sprint("name", g.workload.fullName(), host, name), content, rule.at, "virtual host %s has another route "+
			"with the name %s, so that the two would have the same limits and counters; rename one", host, name)
		if isLimited && p != nil {
			match := fields{"vhost": fields{"name": host, "route": fields{"name": name}}}
			m.put(&g.workload, p, list{"HTTP_ROUTE", match, limits}, host+" "+name)
		}
	}
}

// claim stores the content of a place, and reports whether it is new. It refuses other content for the same place.
func (m *mesh) claim(key, content string, at node, format string, args ...any) bool {
	other, exists := m.claims[key]
	if exists && other != content {
		m.refuse(at, format, args...)
	}
	m.claims[key] = content
	return !exists
}

// put adds a list to a workload. name is the place's name for the policy's report.
func (m *mesh) put(w *workload, p *policy, l list, name string) {
	const conflict = "another policy is for the same hosts of the same pods; write one policy"
	if m.claim(w.fullName()+l.place(), fmt.Sprint(l.limits), p.root, conflict) {
		w = cmp.Or(m.workloads[w.fullName()], w)
		l.limits = slices.Clone(l.limits)
		for i, one := range l.limits {
			if one.isPerRoute() {
				at := entry{key: one.entries[0].key, action: fields{"generic_key": fields{
					"descriptor_key": one.entries[0].key, "descriptor_value": w.fullName(),
				}}}
				l.limits[i].entries = slices.Concat([]entry{at}, one.entries[1:])
			}
		}
		w.lists = append(w.lists, l)
		m.workloads[w.fullName()] = w
		p.places = append(p.places, name)
	}
}

// report reports the places and counters of a policy, and what differs from Envoy Gateway.
func (p *policy) report(in *input) {
	verb := "exempts"
	if p.merge != "" {
		verb = "leaves the limits of the Gateway at"
	}
	for _, l := range p.limits {
		verb = "limits"
		var per []string
		for _, e := range l.entries {
			if e.value == "" {
				per = append(per, e.key)
			}
		}
		p.note("limit %s: %d per %s, counted per %s", l.rule, l.requests, l.unit, cmp.Or(strings.Join(per, ", "), "policy"))
	}
	p.note("%s %s", verb, cmp.Or(strings.Join(p.places, ", "), "nothing"))
	for _, line := range p.notes {
		in.reportf(p.root, "policy %s: %s", p.fullName(), line)
	}
}
