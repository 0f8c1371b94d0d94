package istio

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
	namespace, name string         // of the EnvoyFilter; the name without weir-
	context         string         // GATEWAY or SIDECAR_INBOUND
	listener        string         // name of the only listener that gets the filter: main_internal for waypoints
	selector        map[string]any // labels of workloadSelector, or nil
	target          map[string]any // the only one of targetRefs, or nil
	account         string         // ServiceAccount of the proxies, which may connect to Weir; empty if unknown
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
