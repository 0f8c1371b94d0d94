package istio

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// A limit is one rate limit of a workload: the descriptor that Envoy sends, and the rule of Weir that answers it. The
// descriptor is the entry `limit` with the rule's name, then entries.
type limit struct {
	rule       string  // value of the entry limit, and name of the rule: NAMESPACE/OWNER/LIMIT, unique in the domain
	entries    []entry // what follows the entry limit, in order
	requests   int64   // per unit; with unlimited, unused
	unit       string  // second to year, as in a rule file
	shadowMode bool
	addend     any    // hits_addend of Envoy's rate limit: nil for one hit, else a map of its fields
	onDone     bool   // apply_on_stream_done: charged when the response ends
	headers    string // x_ratelimit_option; empty for the filter's
}

// An entry is one entry of a descriptor: its key and value in the rule, and the action with which Envoy sends it.
type entry struct {
	key      string
	value    string         // empty: every value has a counter of its own
	optional bool           // the rule without this entry has a counter, too: requests without it share one
	action   map[string]any // of Envoy's RateLimit.Action, in JSON's field names
}

// A workload is one proxy, or one set of equal proxies: it gets one EnvoyFilter.
type workload struct {
	namespace, name string            // of the EnvoyFilter; the name without weir-
	context         string            // GATEWAY or SIDECAR_INBOUND
	listener        string            // name of the only listener that gets the filter: main_internal for waypoints
	selector        map[string]string // labels of workloadSelector, or nil
	target          map[string]string // the only one of targetRefs, or nil
	account         string            // NAMESPACE/NAME of the proxies' ServiceAccount; empty if unknown
	from            []node            // what asks for the workload, for errors; at least one
	lists           []list
}

// A list is the limits of one place of a workload's configuration. An empty list at a more specific place exempts it.
type list struct {
	// applyTo is HTTP_FILTER for the filter's own list, which all requests of the workload use that no other list
	// hides; or ROUTE_CONFIGURATION, VIRTUAL_HOST or HTTP_ROUTE for a RateLimitPerRoute, of which the most specific wins.
	applyTo string
	match   map[string]any // routeConfiguration of the patch's match; nil for HTTP_FILTER
	limits  []limit
}

// Values of workload.context, workload.listener and list.applyTo.
const (
	contextGateway = "GATEWAY"
	contextInbound = "SIDECAR_INBOUND"
	waypointMain   = "main_internal"
	httpFilter     = "HTTP_FILTER"
)

// gatewayWorkload returns the proxies of a Gateway of the Gateway API.
func gatewayWorkload(from node, namespace, name string) workload {
	return workload{
		namespace: namespace, name: name, context: contextGateway, account: namespace + "/" + name + "-istio",
		target: map[string]string{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": name}, from: []node{from},
	}
}

// labelledGateway returns the gateway proxies with the labels in a namespace, or in all of them if it is rootNamespace.
func labelledGateway(from node, namespace string, labels map[string]string) workload {
	var values []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		values = append(values, labels[key])
	}
	name := strings.Trim(notInName.ReplaceAllString(strings.ToLower(strings.Join(values, "-")), "-"), "-")
	return workload{namespace: namespace, name: name, context: contextGateway, selector: labels, from: []node{from}}
}

var notInName = regexp.MustCompile(`[^a-z0-9]+`)

// istioGateway returns the proxies of a Gateway of Istio's own API, whose labels select pods of every namespace.
func (in *input) istioGateway(o *object) workload {
	labels := o.root.get("spec", "selector")
	if len(labels.labels()) == 0 {
		in.refuse(o.root, "Gateway %s has no selector, so it is for every gateway; write spec.selector", o.fullName())
	}
	return labelledGateway(o.root, rootNamespace, labels.labels())
}

// isSame reports whether two workloads are the same proxies.
func (w *workload) isSame(o *workload) bool {
	return w.fullName() == o.fullName() && w.context == o.context && w.listener == o.listener &&
		maps.Equal(w.selector, o.selector) && maps.Equal(w.target, o.target)
}

// overlaps reports whether two workloads may be the same pods, or have one name.
func (w *workload) overlaps(o *workload) bool {
	if w.fullName() == o.fullName() {
		return true
	}
	reach := w.namespace == o.namespace || w.namespace == rootNamespace || o.namespace == rootNamespace
	return reach && w.context == o.context && len(w.selector) > 0 && len(o.selector) > 0 &&
		(includes(w.selector, o.selector) || includes(o.selector, w.selector))
}

// includes reports whether a has all labels of b.
func includes(a, b map[string]string) bool {
	for key, value := range b {
		if found, ok := a[key]; !ok || found != value {
			return false
		}
	}
	return true
}

// fullName returns NAMESPACE/NAME of the EnvoyFilter, without weir-.
func (w *workload) fullName() string { return w.namespace + "/" + w.name }

// place returns a text that two lists of the same place share.
func (l *list) place() string { return fmt.Sprint(l.applyTo, l.match) }

// access says which proxies the workload has, and who must be allowed to call Weir.
func (w *workload) access() string {
	proxies := "pods with labels " + strings.TrimPrefix(fmt.Sprint(w.selector), "map")
	if w.target != nil {
		proxies = w.target["kind"] + " " + w.target["name"]
	}
	namespace, name, known := strings.Cut(w.account, "/")
	if !known {
		namespace, name = w.namespace, "NAME"
	}
	return fmt.Sprintf("EnvoyFilter %s/weir-%s configures %s; allow its ServiceAccount to call Weir (access.yaml): "+
		"cluster.local/ns/%s/sa/%s", w.namespace, w.name, proxies, namespace, name)
}
