package istio

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

const gatewayGroup = "gateway.networking.k8s.io"

// A gateway is a Gateway of the Gateway API or of Istio.
type gateway struct {
	*object
	*target

	workload  workload
	listeners []*listener
}

// A listener is a listener of a Gateway, or a server of Istio's Gateway.
type listener struct {
	*target

	root         node
	section      string // name by which a policy's sectionName selects it
	port         string
	isHTTP       bool                    // requests are visible, so that they can be limited
	hosts        []string                // with Istio's Gateway, NAMESPACE/HOST is possible
	virtualHosts map[string][]*routeRule // the rules of all routes, by Envoy's name: HOST:PORT
}

// A route is an HTTPRoute, GRPCRoute or VirtualService.
type route struct {
	*object
	*target

	hosts []string
	rules []*routeRule
}

// A routeRule is a rule of an HTTPRoute or GRPCRoute, or an http of a VirtualService.
type routeRule struct {
	*target

	route   *route
	at      node
	section string   // name by which a policy's sectionName selects it; may be empty
	names   []string // Envoy's names of its routes, one per match; empty ones cannot be selected
	dead    string   // why no limit is possible, or empty
}

// reference returns the kind, namespace and name that a reference has. Its root is the reference.
func (n node) reference(namespace string) *object {
	kind := cmp.Or(n.text("kind"), "Gateway") + "." + cmp.Or(n.text("group"), gatewayGroup)
	return &object{kind, cmp.Or(n.text("namespace"), namespace), n.text("name"), n}
}

// readGateways reads the Gateways.
func (m *mesh) readGateways() {
	for _, o := range slices.Concat(m.objects[kindGateway], m.objects[kindIstioGateway]) {
		w, problem := m.gatewayOf(o)
		g := &gateway{object: o, target: m.target(o, "", problem), workload: w}
		for _, n := range o.root.get("spec").items("listeners", "servers") {
			section, problem := cmp.Or(n.text("name"), n.text("port", "name")), problem
			protocol := cmp.Or(n.text("protocol"), strings.ToUpper(n.text("port", "protocol")))
			isHTTP := slices.Contains([]string{"HTTP", "HTTPS", "HTTP2", "HTTP_PROXY", "GRPC", "GRPC-WEB"}, protocol) &&
				!strings.HasSuffix(strings.ToUpper(n.text("tls", "mode")), "PASSTHROUGH")
			if !isHTTP {
				problem = "it is not HTTP, so it has no requests to limit; write another target"
			}
			if n.text("allowedRoutes", "namespaces", "from") == "Selector" {
				n.reportf("the selector of allowedRoutes is not checked: routes of all namespaces count as allowed")
			}
			g.listeners = append(g.listeners, &listener{
				target: m.target(o, section, problem), root: n, section: section, isHTTP: isHTTP,
				port: cmp.Or(n.text("port", "number"), n.text("port")), hosts: hostsOf(n, "hosts", "hostname"),
				virtualHosts: map[string][]*routeRule{},
			})
		}
		m.gateways[o.id("")] = g
	}
}

// hostsOf returns the hosts in the fields, or * if there are none.
func hostsOf(n node, fields ...string) []string {
	if all := n.texts(fields...); len(all) > 0 {
		return all
	}
	return []string{"*"}
}

// readRoutes reads the routes, and attaches them to the Gateways.
func (m *mesh) readRoutes() {
	for _, o := range slices.Concat(m.objects[kindHTTPRoute], m.objects[kindGRPCRoute], m.objects[kindVirtualService]) {
		spec := o.root.get("spec")
		r := &route{object: o, target: m.target(o, "", ""), hosts: hostsOf(spec, "hostnames", "hosts")}
		m.readRules(r)
		if i := slices.IndexFunc(r.hosts, func(host string) bool { return strings.Contains(host, ":") }); i >= 0 {
			spec.refuse("the host %s has a port; write the host only", r.hosts[i])
		}
		parents := spec.items("parentRefs", "gateways")
		for _, n := range parents {
			parent := n.reference(o.namespace)
			if o.kind == kindVirtualService {
				names := strings.Split("/"+n.text(), "/") // NAMESPACE/NAME or NAME
				parent = &object{kindIstioGateway, cmp.Or(names[len(names)-2], o.namespace), names[len(names)-1], n}
			}
			if why := m.attach(r, parent); why != "" {
				r.missing = append(r.missing, fmt.Sprintf("%s (%s): %s", parent.id(""), n.position(), why))
			}
		}
		if len(r.missing) == len(parents) {
			r.problem = cmp.Or(strings.Join(r.missing, "; "), "it has no Gateway; write parentRefs or gateways")
		}
		for _, rule := range r.rules {
			problem := r.problem
			if rule.dead != "" {
				problem = cmp.Or(problem, rule.dead+"; write another target")
			}
			rule.target = m.target(o, rule.section, problem)
		}
	}
}

// readRules reads the rules of a route, and those of delegates in their place.
func (m *mesh) readRules(r *route) {
	behind := "" // why the next routes are not generated
	for i, n := range r.root.get("spec").items("rules", "http") {
		section, prefix, parts, gone, outer := n.text("name"), "", []node{n}, "", []string{""}
		if to := n.get("delegate"); to.exists() {
			namespace, name := cmp.Or(to.text("namespace"), r.namespace), to.text("name")
			gone = fmt.Sprintf("its delegate %s/%s is not in the input; add its file", namespace, name)
			if o := m.find(r.kind, namespace, name); o != nil {
				parts, prefix, gone, outer = o.root.get("spec").items("http"), section, "", matchNames(n)
			}
		}
		for _, part := range parts {
			name := joined(prefix, part.text("name"))
			if r.kind != kindVirtualService {
				name = cmp.Or(name, fmt.Sprintf("%s.%s.%d", r.namespace, r.name, i))
			}
			rule := &routeRule{route: r, at: part, section: section, dead: cmp.Or(behind, gone)}
			for _, first := range outer { // Istio combines each match with each of the delegate's
				for _, second := range matchNames(part) {
					rule.names = append(rule.names, strings.TrimSuffix(name+"."+joined(first, second), "."))
				}
			}
			if rule.dead == "" && isRedirect(part) {
				rule.dead = "Envoy does not limit redirects and direct responses"
			}
			if slices.ContainsFunc(part.items("match"), func(n node) bool { return n.get("gateways").exists() }) {
				rule.dead = "Weir does not read gateways of a match; write a VirtualService per Gateway"
			}
			r.rules = append(r.rules, rule)
			if r.kind == kindVirtualService && behind == "" && gone == "" && isCatchAll(n) && isCatchAll(part) {
				behind = "Istio does not generate the route: the http at " + part.position().String() + " matches everything"
			}
		}
	}
}

// matchNames returns the names of the matches of a rule or http, or an empty one if it has no matches.
func matchNames(rule node) (names []string) {
	for _, match := range rule.items("matches", "match") {
		names = append(names, match.text("name"))
	}
	if len(names) == 0 {
		return []string{""}
	}
	return names
}

// joined returns the name that Istio gives to what has an outer and an inner name, one of which may be empty.
func joined(outer, inner string) string {
	if outer == "" || inner == "" {
		return outer + inner
	}
	return outer + "-" + inner
}

// isRedirect reports whether Envoy answers the requests of a rule or http itself.
func isRedirect(rule node) bool {
	isFilter := func(f node) bool { return f.text("type") == "RequestRedirect" }
	return rule.get("redirect").exists() || rule.get("directResponse").exists() ||
		slices.ContainsFunc(rule.items("filters"), isFilter)
}

// isCatchAll reports whether an http of a VirtualService matches every request, at every Gateway.
func isCatchAll(http node) bool {
	matchesAll := func(match node) bool {
		for key, value := range match.fields() {
			every := value.text("prefix") == "/" || value.text("regex") == ".*"
			if key.Value != "name" && key.Value != "ignoreUriCase" && (key.Value != "uri" || !every) {
				return false
			}
		}
		return true
	}
	return len(http.items("match")) == 0 || slices.ContainsFunc(http.items("match"), matchesAll)
}

// attach adds the rules of a route to the virtual hosts of a Gateway's listeners, or returns why there are none.
func (m *mesh) attach(r *route, parent *object) (problem string) {
	g := m.gateways[parent.id("")]
	switch {
	case strings.HasPrefix(parent.kind, kindService) || parent.root.text() == "mesh":
		return "it is for sidecars, which have no routes to limit; write limits with service:"
	case parent.kind != kindGateway && parent.kind != kindIstioGateway:
		return "Weir does not read this kind; write a Gateway"
	case g == nil:
		return "it is not in the input; add its file"
	case g.problem != "":
		return g.problem
	}
	problem = "it has no listener for this route; check names, ports, protocols, hosts and allowedRoutes"
	section, port := parent.root.text("sectionName"), parent.root.text("port")
	for _, l := range g.listeners {
		if !l.isHTTP || section != "" && section != l.section || port != "" && port != l.port || !l.allows(g, r) {
			continue
		}
		for _, host := range l.commonHosts(g, r) {
			problem = ""
			for _, rule := range r.rules {
				if !slices.Contains(l.virtualHosts[host], rule) {
					l.virtualHosts[host] = append(l.virtualHosts[host], rule)
				}
			}
		}
	}
	return problem
}

// allows reports whether allowedRoutes lets a route attach to the listener.
func (l *listener) allows(g *gateway, r *route) bool {
	allowed := l.root.get("allowedRoutes")
	from, kinds := allowed.text("namespaces", "from"), allowed.items("kinds")
	isKind := func(n node) bool { return n.reference("").kind == r.kind }
	return (len(kinds) == 0 || slices.ContainsFunc(kinds, isKind)) &&
		(g.kind == kindIstioGateway || from == "All" || from == "Selector" || from != "None" && r.namespace == g.namespace)
}

// commonHosts returns the names of the virtual hosts that a route has at the listener.
func (l *listener) commonHosts(g *gateway, r *route) (names []string) {
	for _, ours := range l.hosts {
		if namespace, host, ok := strings.Cut(ours, "/"); ok {
			if ours = host; namespace != "*" && namespace != r.namespace && (namespace != "." || r.namespace != g.namespace) {
				continue
			}
		}
		for _, host := range r.hosts {
			if !strings.ContainsAny(host, ".*") {
				host += "." + r.namespace + ".svc.cluster.local"
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
