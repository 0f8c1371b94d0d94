package istio

import (
	"cmp"
	"regexp"
	"strings"
)

// shortForm adds the limits of the short form to their workloads.
func (in *input) shortForm() {
	names := map[string]node{} // by rule
	for _, o := range in.objects[kindShort] {
		in.schemas["limits"].check(o.root, "")
		w := in.workload(in.proxies(o.root), o.root)
		owner := cmp.Or(o.root.text("gateway"), o.root.text("service"))
		for _, n := range o.root.items("limits") {
			name := n.get("name")
			l := readLimit(n, owner+"/"+name.text(), w)
			if first, ok := names[l.rule]; ok && name.text() != "" {
				name.refuse("%s already has a limit %s at %s; write another name", owner, name.text(), first.position())
			}
			names[l.rule], w.own = name, append(w.own, l)
		}
	}
}

// proxies returns the workload of a document of the short form.
func (in *input) proxies(root node) (w workload) {
	gateway, service, class := root.text("gateway"), root.text("service"), root.text("class")
	namespace, name, _ := strings.Cut(cmp.Or(gateway, service), "/")
	o := cmp.Or(in.find(kindGateway, namespace, name), in.find(kindIstioGateway, namespace, name))
	switch {
	case (gateway == "") == (service == ""):
		root.refuse("write either gateway: NAMESPACE/NAME or service: NAMESPACE/NAME")
	case class != "" && service != "":
		root.get("class").refuse("class is for gateways; for services with a waypoint, write gateway: NAMESPACE/NAME of " +
			"the waypoint, and host in each limit of a single service")
	case service != "":
		w = workload{namespace: namespace, name: name, context: contextInbound, selector: map[string]string{"app": name}}
		if o := in.find(kindService, namespace, name); o != nil {
			if w.selector = o.root.labels("spec", "selector"); len(w.selector) == 0 {
				o.root.refuse("Service %s has no selector, so its pods are unknown; write a service with a selector", o.fullName())
			}
		}
	case o != nil && class != "" && class != o.root.text("spec", "gatewayClassName"):
		root.get("class").refuse("%s has another class; remove this one", o.id(""))
	case class == classWaypoint || o != nil && o.root.text("spec", "gatewayClassName") == classWaypoint:
		return workload{namespace: namespace, name: name, context: contextInbound}
	case o != nil:
		var problem string
		if w, problem = in.gatewayOf(o); problem != "" {
			root.get("gateway").refuse("%s cannot have limits: %s", o.id(""), problem)
		}
	case class != "":
		return workload{namespace: namespace, name: name, context: contextGateway}
	case len(in.Selector) > 0:
		return labelledGateway(namespace, in.Selector)
	default:
		return labelledGateway(namespace, map[string]string{"istio": name})
	}
	return w
}

// readLimit reads a limit of the short form.
func readLimit(n node, rule string, w *workload) limit {
	number, unit, _ := strings.Cut(n.text("allow"), " per ")
	l := limit{at: n, rule: rule, requests: n.get("allow").count(number), unit: unit}
	var when []any
	if host := n.text("host"); host != "" {
		// Istio's gateways ignore everything behind the colon. The byte \C also matches invalid UTF-8, which would evade
		// the limit otherwise.
		pattern := strings.Replace(regexp.QuoteMeta(strings.ToLower(host)), `\*`, `\C+`, 1)
		when = append(when, n.regex(":authority", `(?i)`+pattern+`\.*(:\C*)?`))
		if w.context == contextInbound {
			n.get("host").reportf("clients in the mesh choose the host, so one that sends another host is not limited")
		}
	}
	if paths := n.texts("paths"); len(paths) > 0 {
		for i, path := range paths {
			pattern, isExact := strings.CutPrefix(regexp.QuoteMeta(path), "=")
			if pattern = strings.ReplaceAll(pattern, "/", "/+"); isExact { // Istio keeps repeated slashes
				paths[i] = pattern + `(\?\C*)?`
			} else {
				paths[i] = strings.TrimSuffix(pattern, "/+") + `([/?;#]\C*)?`
			}
		}
		when = append(when, n.regex(":path", strings.Join(paths, "|")))
	}
	if methods := n.texts("methods"); len(methods) > 0 {
		when = append(when, n.regex(":method", strings.Join(methods, "|")))
	}
	if len(when) > 0 {
		l.entries = append(l.entries, ofHeaders.matching("when", 1, when...))
	}
	per := n.get("per")
	switch kind, name, _ := strings.Cut(per.text(), " "); {
	case kind == "header":
		l.entries = append(l.entries, ofHeaders.eachValue(strings.ToLower(name), true))
	case kind == "query":
		l.entries = append(l.entries, ofQuery.eachValue(name, true))
	case kind == "client-address":
		l.entries = append(l.entries, entry{key: "remote_address", action: fields{"remote_address": fields{}}})
		if w.context == contextInbound {
			per.reportf("per: client-address reads X-Forwarded-For here, which clients in the mesh can forge; per: caller " +
				"cannot be forged")
		}
	case kind == "caller" && w.context == contextGateway:
		per.refuse("per: caller needs a certificate of the mesh; at a gateway, write client-address or header NAME")
	case kind == "caller" && w.isWaypoint(): // the connection has ztunnel's certificate
		l.entries = append(l.entries, expression("caller", "filter_state['io.istio.peer_principal']", true))
	case kind == "caller":
		l.entries = append(l.entries, expression("caller", "connection.uri_san_peer_certificate", true))
	}
	n.reportf("%s", &l)
	return l
}
