package istio

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// A workload is one proxy, or one set of equal proxies: it gets one EnvoyFilter.
type workload struct {
	namespace, name string            // of the EnvoyFilter; the name without weir-
	context         string            // contextGateway, or contextInbound for sidecars and waypoints
	selector        map[string]string // labels of the pods; without any, the pods of the Gateway with this name
	from            node              // what asks for the workload first
	own             []limit           // of the filter, for the requests of all routes
	lists           []list
}

// A list is the limits of one place of a workload's configuration: a RateLimitPerRoute. The most specific one hides the
// others, and without limits it exempts its place.
type list struct {
	applyTo string // ROUTE_CONFIGURATION, VIRTUAL_HOST or HTTP_ROUTE
	match   fields // routeConfiguration of the patch's match; nil for all
	limits  []limit
}

// place returns a text that two lists of the same place share.
func (l *list) place() string { return fmt.Sprint(l.applyTo, l.match) }

const (
	contextGateway = "GATEWAY" // for workload.context
	contextInbound = "SIDECAR_INBOUND"
	classWaypoint  = "istio-waypoint"
	rootNamespace  = "istio-system" // whose EnvoyFilters with a selector reach all namespaces
)

// gatewayOf returns the proxies of a Gateway, or why they can have no limits.
func (in *input) gatewayOf(o *object) (w workload, problem string) {
	spec := o.root.get("spec")
	class, labels := spec.text("gatewayClassName"), in.Selector
	addresses := spec.items("addresses")
	switch isManual := len(addresses) > 1 || len(addresses) == 1 && addresses[0].text("type") == "Hostname"; {
	case o.kind == kindIstioGateway:
		if labels = spec.labels("selector"); len(labels) == 0 {
			o.root.refuse("Gateway %s has no selector, so it is for every gateway; write spec.selector", o.fullName())
		}
	case class == classWaypoint:
		return w, "it is a waypoint, where Istio patches no routes; write limits with gateway:"
	case !slices.Contains([]string{"", "istio", "istio-remote"}, class):
		return w, "Istio makes no Envoys for its class; write gatewayClassName: istio"
	case isManual && len(labels) == 0:
		return w, "Istio makes no pods for its addresses; write --selector with the labels of its pods"
	case !isManual:
		return workload{namespace: o.namespace, name: o.name, context: contextGateway}, ""
	}
	return labelledGateway(rootNamespace, labels), ""
}

var notInName = regexp.MustCompile(`[^a-z0-9]+`)

// labelledGateway returns the gateway proxies with the labels in a namespace, or in all of them if it is rootNamespace.
func labelledGateway(namespace string, labels map[string]string) workload {
	var values []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		values = append(values, labels[key])
	}
	name := strings.Trim(notInName.ReplaceAllString(strings.ToLower(strings.Join(values, "-")), "-"), "-")
	return workload{namespace: namespace, name: name, context: contextGateway, selector: labels}
}

// workload returns the workload of the output with these proxies, which it adds if it is new.
func (in *input) workload(w workload, from node) *workload {
	known := in.workloads[w.fullName()]
	switch {
	case known == nil:
		known = &w
		w.from, in.workloads[w.fullName()] = from, known
	case known.context != w.context || !maps.Equal(known.selector, w.selector):
		from.refuse("the EnvoyFilter %s has other proxies at %s; write the same gateway or service in both, or rename one",
			w.fullName(), known.from.position())
	}
	return known
}

// checkPods refuses workloads of the same pods, which would have two filters, and reports those that may be.
func checkPods(workloads []*workload) {
	byLabel := map[string][]*workload{}
	first := map[string]*workload{} // by namespace and keys of labels: without common keys, all are like the first
	for _, w := range workloads {
		others := slices.Collect(maps.Values(first))
		for key, value := range w.labels() {
			others = append(others, byLabel[key+"="+value]...)
			byLabel[key+"="+value] = append(byLabel[key+"="+value], w)
		}
		keys := fmt.Sprint(w.namespace, w.context, slices.Sorted(maps.Keys(w.labels())))
		first[keys] = cmp.Or(first[keys], w)
		for _, o := range others {
			switch can, must := w.overlaps(o); {
			case must:
				w.from.refuse("the EnvoyFilters %s and %s (%s) may have the same pods, and one pod must have one of them; write "+
					"the same gateway or service in both", w.fullName(), o.fullName(), o.from.position())
			case can:
				w.from.reportf("no pod must have the labels of both EnvoyFilters %s and %s (%s), or it calls Weir twice",
					w.fullName(), o.fullName(), o.from.position())
			}
		}
	}
}

// labels returns labels of the pods.
func (w *workload) labels() map[string]string {
	if len(w.selector) > 0 {
		return w.selector
	}
	return map[string]string{"gateway.networking.k8s.io/gateway-name": w.name} // by Istio
}

// overlaps reports whether a pod can be of both workloads, and whether all pods of one have the labels of the other.
func (w *workload) overlaps(o *workload) (can, must bool) {
	n := common(w.labels(), o.labels())
	reach := w.namespace == o.namespace || w.namespace == rootNamespace && len(w.selector) > 0 ||
		o.namespace == rootNamespace && len(o.selector) > 0
	can = reach && w.context == o.context && w.isWaypoint() == o.isWaypoint() && n >= 0
	return can, can && n == min(len(w.labels()), len(o.labels()))
}

// common returns the number of labels that a and b have in common, or -1 if a label has other values in both.
func common(a, b map[string]string) (n int) {
	for key, value := range b {
		if found, ok := a[key]; ok && found != value {
			return -1
		} else if ok {
			n++
		}
	}
	return n
}

// fullName returns NAMESPACE/NAME of the EnvoyFilter, without weir-.
func (w *workload) fullName() string { return w.namespace + "/" + w.name }

// isWaypoint reports whether the proxies are those of a waypoint.
func (w *workload) isWaypoint() bool { return w.context == contextInbound && len(w.selector) == 0 }

// String says which proxies the workload has, and who must be allowed to call Weir.
func (w *workload) String() string {
	proxies, account := "Gateway "+w.name, w.name+"-istio"
	switch {
	case len(w.selector) > 0:
		proxies, account = "pods with labels "+strings.TrimPrefix(fmt.Sprint(w.selector), "map"), "NAME"
	case w.isWaypoint():
		account = w.name
	}
	if len(w.own)+len(w.lists) == 0 {
		proxies += " without limits"
	}
	return fmt.Sprintf("EnvoyFilter %s/weir-%s configures %s; allow its ServiceAccount to call Weir (access.yaml): "+
		"cluster.local/ns/%s/sa/%s", w.namespace, w.name, proxies, w.namespace, account)
}
