package istio

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A mesh has the Gateways and routes of the input, and the policies that are attached to them.
type mesh struct {
	*input

	gateways map[string]*gateway // by object.id
	targets  map[string]*target  // by object.id
	claims   map[string]string   // contents of the places that have one, by place
}

// A target can have a policy: a Gateway, a listener of it, a route, or a rule of it.
type target struct {
	problem string   // why it can have no limits, or empty
	missing []string // parents of a route where it has no limits, with the reason
	policy  *policy  // or nil
}

// policies adds the limits of Envoy Gateway's policies to their workloads.
func (in *input) policies() {
	m := &mesh{input: in, gateways: map[string]*gateway{}, targets: map[string]*target{}, claims: map[string]string{}}
	m.readGateways()
	m.readRoutes()
	var policies []*policy
	for _, o := range in.objects[kindPolicy] {
		p := in.readPolicy(o)
		policies = append(policies, p)
		m.attachPolicy(p)
	}
	for _, id := range slices.Sorted(maps.Keys(m.gateways)) {
		m.place(m.gateways[id])
	}
	for _, p := range policies {
		if len(p.limits) > 0 && p.isAttached && !p.hasPlace {
			p.root.refuse("the policy limits nothing: %s; add the routes' files, or remove the policy", cmp.Or(p.why,
				"its targets have no routes, or other policies replace it for all of them"))
		}
	}
}

// target returns the target for a section of an object, or for the whole object if the section is empty. Of several
// with one name, one can have limits if any of them can.
func (m *mesh) target(o *object, section, problem string) *target {
	t := m.targets[o.id(section)]
	if t == nil || problem == "" {
		t = cmp.Or(t, &target{})
		t.problem, m.targets[o.id(section)] = problem, t
	}
	return t
}

// attachPolicy attaches a policy to its targets.
func (m *mesh) attachPolicy(p *policy) {
	spec, isAttached := p.root.get("spec"), false
	isUnread := func(n node) bool {
		kind := n.reference("").kind
		unread := !slices.Contains(targetKinds, kind)
		if p.isLimit && unread {
			n.refuse("Weir does not read %s; write one of %s", kind, strings.Join(targetKinds, ", "))
		}
		return unread
	}
	for _, n := range slices.DeleteFunc(spec.items("targetRefs", "targetRef"), isUnread) {
		m.assign(p, n, n.reference(p.namespace), n.text("sectionName"))
		isAttached = true
	}
	for _, n := range slices.DeleteFunc(spec.items("targetSelectors"), isUnread) {
		labels, isAll := n.labels("matchLabels"), n.text("namespaces", "from") == "All"
		for _, o := range m.objects[n.reference("").kind] {
			switch {
			case common(o.root.labels("metadata", "labels"), labels) < len(labels):
			case o.namespace == p.namespace || isAll && m.granted(p, o):
				m.assign(p, n, o, "")
				isAttached = true
			case isAll:
				n.reportf("%s is not limited: no ReferenceGrant of its namespace allows this policy", o.id(""))
			}
		}
	}
	if !isAttached && p.isLimit {
		p.root.refuse("no object of the input is a target of the policy; write targetRefs, or add the targets' files")
	}
}

// granted reports whether a ReferenceGrant lets a policy select an object of another namespace.
func (in *input) granted(p *policy, o *object) bool {
	isFrom := func(n node) bool { return n.reference("").kind == kindPolicy && n.text("namespace") == p.namespace }
	isTo := func(n node) bool { return n.reference("").kind == o.kind && cmp.Or(n.text("name"), o.name) == o.name }
	return slices.ContainsFunc(in.objects[kindGrant], func(g *object) bool {
		spec := g.root.get("spec")
		return g.namespace == o.namespace && slices.ContainsFunc(spec.items("from"), isFrom) &&
			slices.ContainsFunc(spec.items("to"), isTo)
	})
}

// assign attaches a policy to a section of an object.
func (m *mesh) assign(p *policy, at node, o *object, section string) {
	t, whole := m.targets[o.id(section)], m.targets[o.id("")]
	switch {
	case t != nil:
	case whole != nil:
		t = &target{problem: "the object has no listener, server or rule with this name; write one of its names"}
	case len(m.Selector) > 0 && p.isLimit && len(m.objects[o.kind]) == 0:
		w := labelledGateway(rootNamespace, m.Selector)
		m.put(w, at, p, list{applyTo: "ROUTE_CONFIGURATION", limits: p.limits}, "all routes")
		at.reportf("%s is not in the input: the limits are for all routes of the pods that --selector names", o.id(section))
		return
	default:
		t = &target{problem: "it is not in the input; correct its name, add its file, or without files of its kind, write " +
			"--selector with the labels of the gateway's pods"}
	}
	switch other := t.policy; {
	case t.problem != "" && !p.isLimit:
		at.reportf("no effect for %s: %s", o.id(section), t.problem)
	case t.problem != "":
		at.refuse("%s cannot have limits: %s", o.id(section), t.problem)
	case p.merge != "" && (o.kind == kindGateway || o.kind == kindIstioGateway):
		at.refuse("mergeType needs a route as target; remove mergeType")
	case other != nil && other != p && (p.isLimit || other.isLimit):
		at.refuse("%s is already the target of %s (%s), and Envoy Gateway would use the older one; write one policy",
			o.id(section), other.fullName(), other.root.position())
	default:
		t.policy, p.isAttached = p, true
		for _, why := range cmp.Or(whole, t).missing {
			at.reportf("no effect for %s at %s", o.id(section), why)
		}
	}
}

// place puts the limits of a Gateway, its listeners and its routes at their places.
func (m *mesh) place(g *gateway) {
	shares := func(o *gateway) bool {
		_, must := o.workload.overlaps(&g.workload)
		return o != g && must
	}
	isShared := slices.ContainsFunc(slices.Collect(maps.Values(m.gateways)), shares)
	if limits := g.policy.over(nil); len(limits) > 0 && !isShared {
		m.put(g.workload, g.root, g.policy, list{applyTo: "ROUTE_CONFIGURATION", limits: limits}, "all routes of its pods")
	}
	for _, l := range g.listeners {
		for _, host := range slices.Sorted(maps.Keys(l.virtualHosts)) {
			own := g.owner(l, host).policy
			parent := cmp.Or(own, g.policy)
			if parent != nil && (own != nil || isShared) {
				parent.root.reportf("hosts of routes that are not in the input have no limits")
				of := list{"VIRTUAL_HOST", fields{"vhost": fields{"name": host}}, parent.limits}
				m.put(g.workload, g.root, parent, of, "all routes of "+host)
			}
			for _, rule := range l.virtualHosts[host] {
				if rule.route.kind == kindVirtualService {
					m.claim("hosts "+g.id(l.port)+rule.route.id(""), ruleNames(parent.over(nil)), rule.route.root,
						"a policy is for one server of Gateway %s, and this has hosts of others; write one per server", g.fullName())
				}
				m.placeRule(g, host, rule, parent)
			}
		}
	}
}

// placeRule puts the limits of a route's rule at its place in a virtual host, if the rule or its route has a policy.
func (m *mesh) placeRule(g *gateway, host string, rule *routeRule, parent *policy) {
	p := cmp.Or(rule.policy, rule.route.policy)
	limits := p.over(parent)
	isOwn := p != nil && len(limits)+len(parent.over(nil)) > 0
	isPerRoute := slices.ContainsFunc(limits, func(l limit) bool { return l.isPerRoute })
	names := slices.Compact(slices.Sorted(slices.Values(rule.names)))
	content := "" // routes with one name may differ if they have no limits of their own
	switch needsName := isOwn || isPerRoute; {
	case rule.dead != "":
		if of := cmp.Or(p, parent); isOwn || len(limits) > 0 {
			of.why = fmt.Sprintf("%s (%s)", rule.dead, rule.at.position())
			rule.at.reportf("policy %s cannot limit this route by itself: %s", of.fullName(), rule.dead)
		}
		return
	case isPerRoute && len(names) < len(rule.names) && !m.OneCounterPerRule:
		rule.at.refuse("the rule has %d matches: Envoy Gateway counts each by itself, and in Istio all have the same "+
			"name; write a rule per match, or shared: true, or --one-counter-per-rule", len(rule.names))
	case needsName && names[0] == "":
		rule.at.refuse("the http has no name, so that its route can have no limits of its own; write name:")
	case needsName:
		content = rule.at.position().String()
	}
	if isPerRoute && rule.route.kind == kindVirtualService && len(rule.route.hosts) > 1 {
		rule.route.root.reportf("the hosts of VirtualService %s share counters, as Istio unites them", rule.route.fullName())
	}
	for _, name := range names {
		m.claim("name "+g.workload.fullName()+host+" "+name, content, rule.at, "virtual host %s has another route with the "+
			"name %s, so that the two would have the same limits and counters; rename one", host, name)
		if isOwn {
			match := fields{"vhost": fields{"name": host, "route": fields{"name": name}}}
			m.put(g.workload, g.root, p, list{"HTTP_ROUTE", match, limits}, host+" "+name)
		}
	}
}

// claim stores the content of a place, and reports whether it is new. It refuses other content for the same place.
func (m *mesh) claim(key, content string, at node, format string, args ...any) bool {
	other, exists := m.claims[key]
	if exists && other != content {
		at.refuse(format, args...)
	}
	m.claims[key] = content
	return !exists
}

// put adds a list to a workload. name is the place's name for the report.
func (m *mesh) put(w workload, from node, p *policy, l list, name string) {
	if m.claim("list "+w.fullName()+l.place(), ruleNames(l.limits), p.root,
		"another policy is for the same hosts of the same pods; write one policy") {
		known := m.workload(w, from)
		known.lists, p.hasPlace = append(known.lists, l), true
		p.root.reportf("policy %s: limits of %s: %s", p.fullName(), name, cmp.Or(ruleNames(l.limits), "none"))
	}
}

// ruleNames returns a text that equal limits share.
func ruleNames(limits []limit) string {
	var names []string
	for _, l := range limits {
		names = append(names, l.rule)
	}
	return strings.Join(slices.Compact(names), ", ")
}
