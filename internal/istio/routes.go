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
	root         node
	section      string // name by which a policy's sectionName selects it
	port         string
	isHTTP       bool                    // requests are visible, so that they can be limited
	hosts        []string                // with Istio's Gateway, NAMESPACE/HOST is possible
	virtualHosts map[string][]*routeRule // the rules of all routes, by Envoy's name: HOST:PORT
}

// A routeRule is a rule of an HTTPRoute or GRPCRoute, or an http of a VirtualService.
type routeRule struct {
	route   *object
	at      node
	section string   // name by which a policy's sectionName selects it; may be empty
	names   []string // Envoy's names of its routes, one per match; empty ones cannot be selected
	dead    string   // why no limit is possible, or empty
}

// readGateways reads the Gateways of a kind.
func (m *mesh) readGateways(kind string) {
	for _, o := range m.objects[kind] {
		g, spec := &gateway{object: o, workload: gatewayWorkload(o.root, o.namespace, o.name)}, o.root.get("spec")
		class, hasAddresses, problem := spec.get("gatewayClassName").text(), spec.get("addresses").exists(), ""
		switch {
		case kind == kindIstioGateway:
			g.workload = m.istioGateway(o)
		case class == classWaypoint:
			problem = "it is a waypoint, where Istio patches no routes; write limits with gateway:"
		case !slices.Contains([]string{"", "istio", "istio-remote"}, class):
			problem = "Istio makes no Envoys for its class; write gatewayClassName: istio"
		case hasAddresses && len(m.Selector) == 0:
			problem = "it has addresses, so Istio makes no pods for it; write --selector with the labels of its pods"
		case hasAddresses:
			g.workload = labelledGateway(o.root, rootNamespace, m.Selector)
		}
		for _, n := range append(spec.get("listeners").items(), spec.get("servers").items()...) {
			port := n.get("port")
			protocol := cmp.Or(n.get("protocol").text(), strings.ToUpper(port.get("protocol").text()))
			l := &listener{
				root: n, section: cmp.Or(n.get("name").text(), port.get("name").text()),
				port: cmp.Or(port.get("number").text(), port.text()),
				isHTTP: slices.Contains([]string{"HTTP", "HTTPS", "HTTP2", "HTTP_PROXY", "GRPC", "GRPC-WEB"}, protocol) &&
					!strings.HasSuffix(strings.ToUpper(n.get("tls", "mode").text()), "PASSTHROUGH"),
				hosts: hostsOf(append(n.get("hosts").items(), n.get("hostname"))...), virtualHosts: map[string][]*routeRule{},
			}
			m.problems[o.target(l.section).String()] = problem
			if !l.isHTTP {
				m.problems[o.target(l.section).String()] = "it is not HTTP, so it has no requests to limit; write another target"
			}
			if n.get("allowedRoutes", "namespaces", "from").text() == "Selector" {
				m.reportf(n, "the selector of allowedRoutes is not checked: routes of all namespaces count as allowed")
			}
			g.listeners = append(g.listeners, l)
		}
		m.problems[o.target("").String()] = problem
		m.gateways = append(m.gateways, g)
	}
}

// readRoutes reads the routes of a kind, and attaches them to the Gateways.
func (m *mesh) readRoutes(kind string) {
	for _, o := range m.objects[kind] {
		var rules []*routeRule
		behind := "" // why the next routes are not generated
		spec := o.root.get("spec")
		for i, n := range append(spec.get("rules").items(), spec.get("http").items()...) {
			section, prefix, parts, gone := n.get("name").text(), "", []node{n}, ""
			if to := n.get("delegate"); to.exists() {
				namespace, name := cmp.Or(to.get("namespace").text(), o.namespace), to.get("name").text()
				gone = fmt.Sprintf("its delegate %s/%s is not in the input; add its file", namespace, name)
				if d := m.find(kind, namespace, name); d != nil {
					parts, prefix, gone = d.root.get("spec", "http").items(), section, ""
				}
			}
			for _, part := range parts {
				name := strings.Trim(prefix+"-"+part.get("name").text(), "-")
				if kind != kindVirtualService {
					name = cmp.Or(name, fmt.Sprintf("%s.%s.%d", o.namespace, o.name, i))
				}
				rule := &routeRule{route: o, at: part, section: section, names: routeNames(part, name), dead: cmp.Or(behind, gone)}
				if rule.dead == "" && isRedirect(part) {
					rule.dead = "Envoy does not limit redirects and direct responses"
				}
				if slices.ContainsFunc(part.get("match").items(), func(n node) bool { return n.get("gateways").exists() }) {
					rule.dead = "Weir does not read gateways of a match; write a VirtualService per Gateway"
				}
				rules = append(rules, rule)
			}
			if kind == kindVirtualService && behind == "" && isCatchAll(n) {
				behind = "Istio does not generate the route, because the http at " + n.position().String() + " matches everything"
			}
		}
		refs, missing, problem := append(spec.get("parentRefs").items(), spec.get("gateways").items()...), []string{}, ""
		for _, n := range refs {
			parent := target{
				kind:      kindOf(n),
				namespace: cmp.Or(n.get("namespace").text(), o.namespace), name: n.get("name").text(),
			}
			if before, after, ok := strings.Cut(n.text(), "/"); ok {
				parent = target{kind: kindIstioGateway, namespace: before, name: after}
			} else if before != "" {
				parent = target{kind: kindIstioGateway, namespace: o.namespace, name: before}
			}
			hosts := hostsOf(append(spec.get("hostnames").items(), spec.get("hosts").items()...)...)
			if why := m.attach(o, rules, hosts, parent, n); why != "" {
				missing = append(missing, fmt.Sprintf("%s (%s): %s", parent, n.position(), why))
			}
		}
		if len(missing) == len(refs) {
			problem = cmp.Or(strings.Join(missing, "; "), "it has no Gateway; write parentRefs or gateways")
		}
		m.missing[o.target("").String()], m.problems[o.target("").String()] = missing, problem
		for _, rule := range rules {
			if rule.section == "" {
				continue
			}
			m.problems[o.target(rule.section).String()] = problem
			if rule.dead != "" && problem == "" {
				m.problems[o.target(rule.section).String()] = rule.dead + "; write another target"
			}
		}
	}
}

// routeNames returns the names of the routes of a rule or http, one per match.
func routeNames(rule node, name string) (names []string) {
	for _, match := range append(rule.get("matches").items(), rule.get("match").items()...) {
		names = append(names, strings.TrimSuffix(name+"."+match.get("name").text(), "."))
	}
	if len(names) == 0 {
		return []string{name}
	}
	return names
}

// isRedirect reports whether Envoy answers the requests of a rule or http itself.
func isRedirect(rule node) bool {
	isFilter := func(f node) bool { return f.get("type").text() == "RequestRedirect" }
	return rule.get("redirect").exists() || rule.get("directResponse").exists() ||
		slices.ContainsFunc(rule.get("filters").items(), isFilter)
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

// attach adds the rules of a route to the virtual hosts of a Gateway's listeners that fit the parentRef. It returns why
// none fits, or "".
func (m *mesh) attach(o *object, rules []*routeRule, hosts []string, parent target, ref node) (problem string) {
	problem = "it is not in the input; add its file"
	switch {
	case strings.HasPrefix(parent.kind, kindService) || ref.text() == "mesh":
		return "it is for sidecars, which have no routes to limit; write limits with service:"
	case parent.kind != kindGateway && parent.kind != kindIstioGateway:
		return "Weir does not read this kind; write a Gateway"
	}
	section, port := ref.get("sectionName").text(), ref.get("port").text()
	for _, g := range m.gateways {
		if g.target("").String() != parent.String() {
			continue
		}
		if problem = m.problems[parent.String()]; problem != "" {
			return problem
		}
		problem = "it has no listener for this route; check names, ports, protocols, hosts and allowedRoutes"
		for _, l := range g.listeners {
			if !l.isHTTP || section != "" && section != l.section || port != "" && port != l.port || !l.allows(g, o) {
				continue
			}
			for _, host := range l.commonHosts(g, o, hosts) {
				problem = ""
				for _, rule := range rules {
					if !slices.Contains(l.virtualHosts[host], rule) {
						l.virtualHosts[host] = append(l.virtualHosts[host], rule)
					}
				}
			}
		}
	}
	return problem
}

// allows reports whether allowedRoutes lets a route attach to the listener.
func (l *listener) allows(g *gateway, o *object) bool {
	from, kinds := l.root.get("allowedRoutes", "namespaces", "from").text(), l.root.get("allowedRoutes", "kinds").items()
	isKind := func(n node) bool { return kindOf(n) == o.kind }
	return (len(kinds) == 0 || slices.ContainsFunc(kinds, isKind)) &&
		(g.kind == kindIstioGateway || from == "All" || from == "Selector" || from != "None" && o.namespace == g.namespace)
}

// commonHosts returns the names of the virtual hosts that a route has at the listener.
func (l *listener) commonHosts(g *gateway, o *object, hosts []string) (names []string) {
	for _, ours := range l.hosts {
		if namespace, host, ok := strings.Cut(ours, "/"); ok {
			if ours = host; namespace != "*" && namespace != o.namespace && (namespace != "." || o.namespace != g.namespace) {
				continue
			}
		}
		for _, host := range hosts {
			if !strings.ContainsAny(host, ".*") {
				host += "." + o.namespace + ".svc.cluster.local"
			}
			if host = intersect(strings.ToLower(ours), strings.ToLower(host)); host != "" {
				names = append(names, host+":"+l.port)
			}
		}
	}
	return names
}

// owner returns the listener of a virtual host, which may be at several listeners of the port: that with the longest
// hostname. As in Envoy Gateway, its policy is the virtual host's.
func (g *gateway) owner(l *listener, host string) *listener {
	length := func(l *listener) (longest int) {
		for _, ours := range l.hosts {
			ours = strings.ToLower(ours[strings.Index(ours, "/")+1:]) + ":" + l.port
			if intersect(ours, host) == host {
				longest = max(longest, len(ours))
			}
		}
		return longest
	}
	for _, other := range g.listeners {
		if length(other) > length(l) {
			l = other
		}
	}
	return l
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

// hostsOf returns the texts of nodes; without any, *.
func hostsOf(nodes ...node) (all []string) {
	for _, n := range nodes {
		if text := n.text(); text != "" {
			all = append(all, text)
		}
	}
	if len(all) == 0 {
		return []string{"*"}
	}
	return all
}
