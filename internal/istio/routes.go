package istio

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// A gateway is a Gateway of the Gateway API or of Istio.
type gateway struct {
	*object

	workload  workload
	listeners []*listener
}

// A listener is a listener of a Gateway, or a server of Istio's Gateway.
type listener struct {
	root           node
	section        string // name by which a policy's sectionName selects it
	port, protocol string
	hosts          []string                // with Istio's Gateway, NAMESPACE/HOST is possible
	virtualHosts   map[string][]*routeRule // the rules of all routes, by Envoy's name: HOST:PORT
}

// A route is an HTTPRoute, GRPCRoute or VirtualService.
type route struct {
	*object

	hosts      []string
	rules      []*routeRule
	isAttached bool   // to a listener of the input
	problem    string // why it is attached to none
}

const noListener = "is attached to no listener; check its Gateways, its hosts and the listeners' allowedRoutes"

// A routeRule is a rule of a route.
type routeRule struct {
	route   *route
	at      node
	section string   // name by which a policy's sectionName selects it; may be empty
	names   []string // Envoy's names of its routes, one per match; an http without a name has empty ones
	dead    string   // why no limit is possible, or empty
}

// readGateways reads the Gateways.
func (m *mesh) readGateways(kind string) {
	for _, o := range m.of(kind) {
		g := &gateway{object: o}
		switch spec := o.root.get("spec"); {
		case kind == kindIstioGateway:
			g.workload = m.istioGateway(o)
		case spec.get("addresses").exists() && len(m.Selector) > 0:
			g.workload = labelledGateway(o.root, rootNamespace, m.Selector)
		default:
			g.workload = gatewayWorkload(o.root, o.namespace, o.name)
		}
		for _, n := range slices.Concat(o.root.get("spec", "listeners").items(), o.root.get("spec", "servers").items()) {
			port := n.get("port")
			section := n.get("name").or(port.get("name")).text()
			m.problems[o.target(section).String()] = ""
			g.listeners = append(g.listeners, &listener{
				root: n, section: section, port: port.get("number").or(port).text(),
				protocol: n.get("protocol").or(port.get("protocol")).text(),
				hosts:    texts(n.get("hosts").or(n.get("hostname")), "*"), virtualHosts: map[string][]*routeRule{},
			})
		}
		m.gateways = append(m.gateways, g)
		m.sharing[g.workload.fullName()]++
		m.problems[o.target("").String()] = m.gatewayProblem(o)
	}
}

// gatewayProblem returns why a Gateway can have no limits, or "".
func (m *mesh) gatewayProblem(o *object) string {
	switch class := o.root.get("spec", "gatewayClassName").text(); {
	case strings.HasPrefix(class, "istio-agentgateway"):
		return "is not an Envoy (class " + class + "); write a Gateway of class istio"
	case class == classWaypoint:
		return "is a waypoint, where Istio patches no routes; write limits with service: (see the short form)"
	case o.root.get("spec", "addresses").exists() && len(m.Selector) == 0:
		return "has addresses, so Istio makes no pods for it; write --selector with the labels of its pods"
	}
	return ""
}

// readRoutes reads the HTTPRoutes or GRPCRoutes, and attaches them to the Gateways.
func (m *mesh) readRoutes(kind string) {
	for _, o := range m.of(kind) {
		r := &route{object: o, hosts: texts(o.root.get("spec", "hostnames"), "*"), problem: noListener}
		for i, n := range o.root.get("spec", "rules").items() {
			name := n.get("name").text()
			rule := &routeRule{route: r, at: n, section: name}
			name = cmp.Or(name, fmt.Sprintf("%s.%s.%d", o.namespace, o.name, i))
			rule.names = slices.Repeat([]string{name}, max(1, len(n.get("matches").items())))
			for _, f := range n.get("filters").items() {
				if f.get("type").text() == "RequestRedirect" {
					rule.dead = "Envoy does not limit redirects"
				}
			}
			r.rules = append(r.rules, rule)
		}
		for _, n := range o.root.get("spec", "parentRefs").items() {
			namespace, kind := cmp.Or(n.get("namespace").text(), o.namespace), cmp.Or(n.get("kind").text(), "Gateway")
			if kind == kindService {
				r.problem = meshProblem
				continue
			}
			section, port := n.get("sectionName").text(), n.get("port").text()
			m.attach(r, kind+"."+gatewayGroup, namespace, n.get("name").text(), func(l *listener) bool {
				from := cmp.Or(l.root.get("allowedRoutes", "namespaces", "from").text(), "Same")
				return (section == "" || section == l.section) && (port == "" || port == l.port) &&
					(from != "Same" || o.namespace == namespace)
			})
		}
		m.addProblems(r)
	}
}

const meshProblem = "is for sidecars, which have no routes to limit; write limits with service: (see the short form)"

// addProblems stores why limits of the route and its rules are not possible.
func (m *mesh) addProblems(r *route) {
	for _, rule := range r.rules {
		m.problems[r.target(rule.section).String()] = ""
		if rule.dead != "" {
			m.problems[r.target(rule.section).String()] = "can have no limits: " + rule.dead + "; write another target"
		}
	}
	if r.isAttached {
		r.problem = ""
	}
	m.problems[r.target("").String()] = r.problem
}

// readVirtualServices reads the VirtualServices with those to which they delegate, and attaches them to the Gateways.
func (m *mesh) readVirtualServices() {
	for _, o := range m.of(kindVirtualService) {
		r := &route{object: o, hosts: texts(o.root.get("spec", "hosts")), problem: meshProblem}
		for i, h := range r.hosts {
			if !strings.ContainsAny(h, ".*") {
				r.hosts[i] = h + "." + o.namespace + ".svc.cluster.local"
			}
		}
		behind := "" // why the next routes are not generated
		for _, n := range o.root.get("spec", "http").items() {
			section, https, root := n.get("name").text(), []node{n}, ""
			if to := n.get("delegate"); to.exists() {
				https, root = nil, section
				if d := m.find(kindVirtualService, cmp.Or(to.get("namespace").text(), o.namespace), to.get("name").text()); d != nil {
					https = d.root.get("spec", "http").items()
				}
			}
			for _, http := range https {
				rule := &routeRule{route: r, at: http, section: section, names: routeNames(http, root)}
				if http.get("redirect").exists() || http.get("directResponse").exists() {
					rule.dead = "Envoy does not limit redirects and direct responses"
				}
				rule.dead = cmp.Or(behind, rule.dead)
				r.rules = append(r.rules, rule)
			}
			if behind == "" && isCatchAll(n) {
				behind = "Istio does not generate the route, because the http at " + n.position().String() +
					" matches every request"
			}
		}
		for _, name := range texts(o.root.get("spec", "gateways")) {
			namespace, name, ok := strings.Cut(name, "/")
			if !ok {
				namespace, name = o.namespace, namespace
			}
			if name != "mesh" {
				r.problem = noListener
				m.attach(r, kindIstioGateway, namespace, name, func(*listener) bool { return true })
			}
		}
		m.addProblems(r)
	}
}

// routeNames returns the names of the routes of an http. root is the name of the http that delegates to it, or empty.
func routeNames(http node, root string) (names []string) {
	name := http.get("name").text()
	if root != "" && name != "" {
		root += "-"
	}
	for _, match := range http.get("match").items() {
		suffix := match.get("name").text()
		if suffix != "" {
			suffix = "." + suffix
		}
		names = append(names, root+name+suffix)
	}
	if len(names) == 0 {
		return []string{root + name}
	}
	return names
}

// isCatchAll reports whether an http of a VirtualService matches every request, at every Gateway.
func isCatchAll(http node) bool {
	matches := http.get("match").items()
	return !http.get("delegate").exists() && (len(matches) == 0 || slices.ContainsFunc(matches, func(match node) bool {
		all := true
		match.each(func(key, value node) {
			every := value.get("prefix").text() == "/" || value.get("regex").text() == ".*"
			all = all && (key.Value == "name" || key.Value == "ignoreUriCase" || key.Value == "uri" && every)
		})
		return all
	}))
}

// attach adds a route to the virtual hosts of the Gateway's listeners that fit.
func (m *mesh) attach(r *route, kind, namespace, name string, fits func(*listener) bool) {
	i := slices.IndexFunc(m.gateways, func(g *gateway) bool {
		return g.kind == kind && g.namespace == namespace && g.name == name
	})
	if i < 0 {
		r.problem = "belongs to Gateway " + namespace + "/" + name + ", which is not in the input; add its file"
		return
	}
	for _, l := range m.gateways[i].listeners {
		if !slices.Contains([]string{"HTTP", "HTTPS", "HTTP2", "GRPC", "GRPC-WEB"}, l.protocol) || !fits(l) {
			continue
		}
		for _, host := range l.hosts {
			if only, rest, ok := strings.Cut(host, "/"); ok {
				if host = rest; only != "*" && only != r.namespace && (only != "." || r.namespace != namespace) {
					continue
				}
			}
			for _, h := range r.hosts {
				if h = intersect(strings.ToLower(host), strings.ToLower(h)); h == "" {
					continue
				}
				h += ":" + l.port
				r.isAttached = true
				for _, rule := range r.rules {
					if !slices.Contains(l.virtualHosts[h], rule) {
						l.virtualHosts[h] = append(l.virtualHosts[h], rule)
					}
				}
			}
		}
	}
}

// intersect returns the hosts that both a and b match, such as a.com for *.com and a.com, or "" if there is none.
func intersect(a, b string) string {
	for range 2 {
		if a == b || strings.HasPrefix(a, "*") && strings.HasSuffix(b, a[1:]) {
			return b
		}
		a, b = b, a
	}
	return ""
}

// texts returns the texts of a list or of a single scalar; without any, the defaults.
func texts(n node, defaults ...string) (all []string) {
	for _, item := range append(n.items(), n) {
		if text := item.text(); text != "" {
			all = append(all, text)
		}
	}
	if len(all) == 0 {
		return defaults
	}
	return all
}
