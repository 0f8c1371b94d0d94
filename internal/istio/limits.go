package istio

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// fullNames, limitNames and so on match the texts of the short form.
var (
	fullNames  = regexp.MustCompile(`^([a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?)/([a-z0-9](?:[-.a-z0-9]{0,178}[a-z0-9])?)$`)
	limitNames = regexp.MustCompile(`^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`)
	hosts      = regexp.MustCompile(`^(?i)(\*\.)?[a-z0-9-]+(\.[a-z0-9-]+)*$`)
	paths      = regexp.MustCompile(`^=?((/` + segment + `)+|/)$|^=(/` + segment + `)+/$`)
	methods    = regexp.MustCompile(`^[A-Z][A-Z-]*$`)
	headers    = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")
	parameters = regexp.MustCompile(`^[^&=#\s]+$`)
	rates      = regexp.MustCompile(`^([0-9]+) per (second|minute|hour|day|week|month|year)$`)
)

// segment matches a segment of a path that Istio's normalization does not change, and that needs no percent-encoding.
const segment = `\.{0,2}[-\w~!$&'()+,;=:@][-\w.~!$&'()+,;=:@]*`

// maxRegex is the maximum number of bytes of a condition. Istio's re2.max_program_size is 32768 instructions.
const maxRegex = 16_000

const classWaypoint = "istio-waypoint"

// shortForm returns the workloads of the short form.
func (in *input) shortForm() (all []workload) {
	seen := map[string]node{} // names of limits
	for _, o := range in.objects[kindShort] {
		in.only(o.root, "this document", "gateway", "service", "class", "limits")
		w, owner := in.proxies(o.root)
		l := list{applyTo: httpFilter}
		var names []string
		for _, item := range in.list(o.root.get("limits"), "limits") {
			one, name := in.limit(item, owner, &w), item.get("name")
			if first, ok := seen[one.rule]; ok && !strings.HasSuffix(one.rule, "/") {
				in.refuse(name, "%s already has a limit %s at %s; write another name", owner, name.text(), first.position())
			}
			seen[one.rule] = name
			names, l.limits = append(names, name.text()), append(l.limits, one)
		}
		slices.Sort(names)
		in.reportf(o.root, "EnvoyFilter %s/weir-%s has the limits of %s, all in fixed windows: %s", w.namespace, w.name,
			owner, cmp.Or(strings.Join(names, ", "), "none"))
		w.from, w.lists = []node{o.root}, []list{l}
		all = append(all, w)
	}
	return all
}

// proxies returns the workload of a document of the short form, and the NAMESPACE/NAME of its gateway or service.
func (in *input) proxies(root node) (w workload, owner string) {
	at, isService := root.get("gateway"), root.get("service").exists()
	if isService == at.exists() {
		in.refuse(root, "write either gateway: NAMESPACE/NAME or service: NAMESPACE/NAME")
		return w, ""
	}
	if isService {
		at = root.get("service")
	}
	owner = at.text()
	names := fullNames.FindStringSubmatch(owner)
	if names == nil {
		in.refuse(at, "%q is not a gateway or service; write NAMESPACE/NAME", owner)
		return w, owner
	}
	namespace, name := names[1], names[2]
	class := root.get("class")
	gateway, istios := in.find(kindGateway, namespace, name), in.find(kindIstioGateway, namespace, name)
	if !isService && gateway != nil && !class.exists() {
		class = gateway.root.get("spec", "gatewayClassName")
	}
	switch {
	case strings.HasPrefix(class.text(), "istio-agentgateway"):
		in.refuse(class, "a gateway of class %s is no Envoy; write the limit at a gateway of class istio", class.text())
	case class.exists() && isService:
		in.refuse(class, "class is for gateways; for services with a waypoint, write gateway: NAMESPACE/NAME of the "+
			"waypoint, and host in each limit of a single service")
	case class.text() == classWaypoint: // Istio ignores an EnvoyFilter whose target is a Service
		w = gatewayWorkload(root, namespace, name)
		w.context, w.listener, w.account = contextInbound, waypointMain, owner
		return w, owner
	case isService:
		w = workload{namespace: namespace, context: contextInbound, selector: map[string]string{"app": name}}
		if o := in.find(kindService, namespace, name); o != nil {
			if w.selector = o.root.get("spec", "selector").labels(); len(w.selector) == 0 {
				in.refuse(o.root, "Service %s has no selector, so its pods are unknown; write a service with a selector", owner)
			}
		}
	case class.exists() || gateway != nil:
		return gatewayWorkload(root, namespace, name), owner
	case istios != nil:
		return in.istioGateway(istios), owner
	case len(in.Selector) > 0:
		return labelledGateway(root, namespace, in.Selector), owner
	default:
		return labelledGateway(root, namespace, map[string]string{"istio": name}), owner
	}
	w.name = name
	return w, owner
}

// limit reads a limit of the short form.
func (in *input) limit(n node, owner string, w *workload) limit {
	in.only(n, "a limit", "name", "host", "paths", "methods", "per", "allow")
	name := in.match(n.get("name"), limitNames, "name", "write lowercase letters, digits and -, beginning with a letter")
	l := limit{rule: owner + "/" + name[0]}
	var conditions []fields
	when := func(header, regex string) {
		if len(regex) > maxRegex {
			in.refuse(n, "the condition on %s has %d bytes, and Envoy refuses large ones (above %d); write more limits", header,
				len(regex), maxRegex)
		}
		conditions = append(conditions, condition{name: header, kind: "RegularExpression", value: regex}.matcher())
	}
	if host := n.get("host"); host.exists() {
		text := in.match(host, hosts, "host", "write a name without port, such as shop.example.com or *.example.com")[0]
		regex := strings.Replace(regexp.QuoteMeta(strings.ToLower(text)), `\*`, `\C+`, 1)
		when(":authority", `(?i)`+regex+`\.*(:\C*)?`) // Istio's gateways ignore everything behind the colon
		if w.context == contextInbound {
			in.reportf(host, "clients in the mesh choose the host, so one that sends another host is not limited")
		}
	}
	// The byte \C also matches invalid UTF-8, which would evade the limit otherwise.
	if all := in.texts(n.get("paths"), paths, "paths", "write a prefix of whole segments, such as /login, or =/login for "+
		"this path only, without %, *, query, or segments that are empty, . or .."); len(all) > 0 {
		for i, path := range all {
			regex, isExact := strings.CutPrefix(regexp.QuoteMeta(path), "=")
			if regex = strings.ReplaceAll(regex, "/", "/+"); isExact { // Istio keeps repeated slashes
				all[i] = regex + `(\?\C*)?`
			} else {
				all[i] = strings.TrimSuffix(regex, "/+") + `([/?;#]\C*)?`
			}
		}
		when(":path", strings.Join(all, "|"))
	}
	if all := in.texts(n.get("methods"), methods, "methods", "write methods in upper case, such as POST"); len(all) > 0 {
		when(":method", strings.Join(all, "|"))
	}
	if len(conditions) > 0 {
		l.entries = append(l.entries, entry{key: "when", value: "1", action: fields{
			"header_value_match": fields{"descriptor_key": "when", "descriptor_value": "1", "headers": conditions},
		}})
	}
	if per := n.get("per"); per.exists() {
		l.entries = append(l.entries, in.per(per, w))
	}
	rate := in.match(n.get("allow"), rates, "allow", "write NUMBER per second, minute, hour, day, week, month or year")
	if len(rate) > 1 {
		requests, err := strconv.ParseInt(rate[1], 10, 64)
		if err != nil || requests > math.MaxUint32 {
			in.refuse(n.get("allow"), "allow has a number above 4294967295; write a smaller number, or a shorter unit")
		}
		l.requests, l.unit = requests, rate[2]
	}
	return l
}

// per returns the entry whose values have counters of their own. Requests without a value share one.
func (in *input) per(n node, w *workload) entry {
	text := n.text()
	kind, name, _ := strings.Cut(text, " ")
	switch {
	case kind == "header" && headers.MatchString(name):
		return ofHeaders.each(strings.ToLower(name), true)
	case kind == "query" && parameters.MatchString(name):
		return ofQuery.each(name, true)
	case text == "client-address":
		if w.context == contextInbound {
			in.reportf(n, "per: client-address reads X-Forwarded-For here, which clients in the mesh can forge; "+
				"per: caller cannot be forged")
		}
		return entry{key: "remote_address", action: fields{"remote_address": fields{}}}
	case text == "caller" && w.context == contextInbound:
		if w.listener == waypointMain { // the connection has ztunnel's certificate
			return expression("caller", "filter_state['io.istio.peer_principal']", true)
		}
		return expression("caller", "connection.uri_san_peer_certificate", true)
	case text == "caller":
		in.refuse(n, "per: caller needs a certificate of the mesh; at a gateway, write client-address or header NAME")
	default:
		in.refuse(n, "per has the value %q; write client-address, caller, header NAME or query NAME", text)
	}
	return entry{}
}

// match returns the match of a text and its groups, or refuses it and returns one empty text.
func (in *input) match(n node, pattern *regexp.Regexp, field, instead string) []string {
	if found := pattern.FindStringSubmatch(n.text()); found != nil {
		return found
	}
	what := fmt.Sprintf("has the value %q", n.text())
	if !n.exists() {
		what = "is missing"
	}
	in.refuse(n, "%s %s; %s", field, what, instead)
	return []string{""}
}

// texts returns the texts of a list, sorted.
func (in *input) texts(n node, pattern *regexp.Regexp, field, instead string) (all []string) {
	items := in.list(n, field)
	if n.exists() && n.text() == "" && len(items) == 0 {
		in.refuse(n, "%s is empty; leave it out, which means all %s", field, field)
	}
	for _, item := range items {
		all = append(all, in.match(item, pattern, field, instead)[0])
	}
	slices.Sort(all)
	return slices.Compact(all)
}
