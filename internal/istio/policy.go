package istio

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// A policy is a BackendTrafficPolicy of Envoy Gateway: its targets and its global rate limits.
type policy struct {
	*object

	targets    []target
	isAttached bool     // to one of the targets at least
	isLimit    bool     // spec.rateLimit exists: without it, the policy only exempts its targets
	merge      string   // spec.mergeType, or empty: limits replace those of the Gateway
	limits     []limit  // in the order of the rules
	notes      []string // for the report: what differs from Envoy Gateway, and what to know
	places     []string // for the report: the places that have its limits
}

// over returns the limits of a route whose policy is p, at a listener whose policy is parent. Both may be nil.
func (p *policy) over(parent *policy) []limit {
	p, parent = cmp.Or(p, &policy{merge: "StrategicMerge"}), cmp.Or(parent, &policy{})
	if p.merge == "" || p.merge == "JSONMerge" && len(p.limits) > 0 {
		return p.limits
	}
	return slices.Concat(parent.limits, p.limits)
}

// perGateway is the first entry of limits that each route of each gateway counts by itself; its value is the workload.
const perGateway = "gateway"

func (l *limit) isPerRoute() bool { return len(l.entries) > 0 && l.entries[0].key == perGateway }

// note adds a line to the policy's report, once.
func (p *policy) note(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(p.notes, text) {
		p.notes = append(p.notes, text)
	}
}

var (
	ownFields   = []string{"rateLimit", "mergeType", "targetRef", "targetRefs", "targetSelectors"}
	otherFields = strings.Fields("bandwidthLimit faultInjection admissionControl useClientProtocol compression " +
		"compressor responseOverride httpUpgrade requestBuffer telemetry routingType loadBalancer retry proxyProtocol " +
		"tcpKeepalive healthCheck circuitBreaker timeout connection dns http2") // of Envoy Gateway 1.9
	httpMethods = []string{"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"}
)

// readPolicy reads a BackendTrafficPolicy strictly, and reports fields that have no effect.
func (in *input) readPolicy(o *object) *policy {
	spec := o.root.get("spec")
	rateLimit := spec.get("rateLimit")
	p := &policy{object: o, isLimit: rateLimit.exists(), merge: in.oneOf(spec, "mergeType", "StrategicMerge", "JSONMerge")}
	in.only(o.root, "a policy", "apiVersion", "kind", "metadata", "spec", "status")
	in.only(spec, "the spec of a policy", slices.Concat(ownFields, otherFields)...)
	spec.each(func(key, _ node) {
		if slices.Contains(otherFields, key.Value) {
			p.note("%s is not Weir's and has no effect in Istio", key.Value)
		}
	})
	in.only(rateLimit, "rateLimit", "type", "global", "local")
	global, local, rules := rateLimit.get("global"), rateLimit.get("local"), rateLimit.get("global", "rules")
	in.only(global, "global", "rules")
	if kind := in.oneOf(rateLimit, "type", "Global", "Local"); local.exists() ||
		(kind != "" || global.exists()) && !rules.exists() {
		in.refuse(rateLimit, "Weir counts global limits; write global with rules, and for limits per Envoy an EnvoyFilter "+
			"with envoy.filters.http.local_ratelimit")
	}
	if p.isLimit && len(rules.items()) == 0 {
		p.note("rateLimit has no rules, so it limits nothing")
	}
	for i, n := range in.list(rules, "rules") {
		in.readRule(p, i, n)
	}
	if len(p.limits) > 0 {
		p.note("after a denial, Envoy Gateway charges the other limits, too: start Weir with --charge-each")
	}
	p.targets = in.readTargets(p, spec)
	return p
}

// readRule adds the limits of a rule: one for requests, and another one if responses have a cost.
func (in *input) readRule(p *policy, index int, n node) {
	in.only(n, "a rule", "clientSelectors", "limit", "cost", "shared", "shadowMode", "xRateLimitHeaders")
	value, cost := n.get("limit"), n.get("cost")
	in.only(value, "a limit of Weir", "requests", "unit")
	l := limit{
		rule:       fmt.Sprintf("%s/%s/%d", p.namespace, p.name, index),
		unit:       strings.ToLower(in.oneOf(value, "unit", "Second", "Minute", "Hour", "Day", "Week", "Month", "Year")),
		requests:   in.number(value, "requests", math.MaxUint32),
		shadowMode: in.flag(n, "shadowMode"),
		headers: map[string]string{"Off": "OFF", "DraftVersion03": "DRAFT_VERSION_03"}[in.oneOf(
			n, "xRateLimitHeaders", "Off", "DraftVersion03")],
	}
	if l.unit == "" {
		in.refuse(value, "the limit has no unit; write limit: {requests: 10, unit: Minute}")
	}
	if in.flag(n, "shared") {
		p.note("Envoy Gateway has a filter of its own for shared rules, and after a denial the next filters charge " +
			"nothing; Weir charges all rules that match")
	} else {
		l.entries = []entry{
			{key: perGateway},
			expression("host", "xds.virtual_host_name", false),
			expression("route", "xds.route_name", false),
		}
	}
	l.entries = append(l.entries, in.conditions(p, n)...)
	in.only(cost, "cost", "request", "response")
	response := in.cost(p, cost.get("response"))
	l.addend = in.cost(p, cost.get("request"))
	p.limits = append(p.limits, l)
	if response != nil {
		l.addend, l.onDone = response, true
		p.limits = append(p.limits, l)
	}
}

// cost returns hits_addend of a cost, or nil if there is no cost.
func (in *input) cost(p *policy, n node) any {
	if !n.exists() {
		return nil
	}
	in.only(n, "a cost in Istio, where no filter writes metadata,", "from", "number")
	in.oneOf(n, "from", "Number")
	hits := in.number(n, "number", 1e9)
	if hits == 0 {
		p.note("a cost of 0 charges nothing: start Weir with --allow-peek-at-limit")
	}
	return fields{"number": hits}
}

// A matchKind is a field of a client selector.
type matchKind struct {
	field  string
	header string   // the header that it compares; empty if each match has a name
	names  []string // of a match's fields
	types  []string // the first is the default
	actions
}

// actions are names of Envoy's actions for matches of headers or query parameters, and of their fields.
type actions struct{ match, matchers, distinct, name, prefix string }

var (
	ofHeaders  = actions{"header_value_match", "headers", "request_headers", "header_name", "header:"}
	queryList  = "query_parameters"
	ofQuery    = actions{"query_parameter_value_match", queryList, queryList, "query_parameter_name", "query:"}
	allNames   = []string{"value", "invert", "type", "name"}
	allTypes   = []string{"Exact", "RegularExpression", "Distinct"}
	pathTypes  = []string{"PathPrefix", "Exact", "RegularExpression"}
	matchKinds = []matchKind{
		{"headers", "", allNames, allTypes, ofHeaders},
		{"methods", ":method", allNames[:2], allTypes[:1], ofHeaders},
		{"path", ":path", allNames[:3], pathTypes, ofHeaders},
		{"queryParams", "", allNames, allTypes, ofQuery},
	}
)

// entry returns an entry for matchers that all must match, or with expect false must not.
func (a actions) entry(key string, number int, expect bool, matchers ...any) entry {
	value := strconv.Itoa(number)
	return entry{key: key, value: value, action: fields{a.match: fields{
		"descriptor_key": key, "descriptor_value": value, "expect_match": expect, a.matchers: matchers,
	}}}
}

// each returns the entry with the value of a header or query parameter. Requests without it share a counter if it is
// optional; else the limit does not apply to them.
func (a actions) each(name string, optional bool) entry {
	config := fields{"descriptor_key": a.prefix + name, a.name: name}
	if optional {
		config["skip_if_absent"] = true
	}
	return entry{key: a.prefix + name, optional: optional, action: fields{a.distinct: config}}
}

// expression returns the entry with the value of a CEL expression, which may be optional as in each.
func expression(key, text string, optional bool) entry {
	config := fields{
		"@type":          "type.googleapis.com/envoy.extensions.rate_limit_descriptors.expr.v3.Descriptor",
		"descriptor_key": key, "text": text,
	}
	if optional {
		config["skip_if_error"] = true
	}
	return entry{key: key, optional: optional, action: fields{"extension": fields{
		"name": "envoy.rate_limit_descriptors.expr", "typed_config": config,
	}}}
}

// conditions returns the entries of a rule's client selectors, which all must hold.
func (in *input) conditions(p *policy, rule node) []entry {
	positive := map[string][]any{} // matchers by action
	first := map[string]node{}     // fields of which a rule can have one
	var when, unless, from, distinct []entry
	for _, selector := range in.list(rule.get("clientSelectors"), "clientSelectors") {
		in.only(selector, "a client selector", "headers", "methods", "path", "sourceCIDR", "queryParams")
		if len(selector.Content) == 0 {
			in.refuse(selector, "a client selector has no condition; write headers, methods, path, sourceCIDR or queryParams")
		}
		for _, field := range []string{"methods", "path", "sourceCIDR"} {
			if n, other := selector.get(field), first[field]; n.exists() {
				if first[field] = n; other.Node != nil {
					in.refuse(n, "a rule has two %s (see %s), of which Envoy Gateway ignores the first, or counts both; write one",
						field, other.position())
				}
			}
		}
		for _, kind := range matchKinds {
			for _, c := range in.matches(selector.get(kind.field), kind) {
				switch {
				case c.kind == "Distinct":
					distinct = append(distinct, kind.each(c.name, false))
				case c.invert:
					unless = append(unless, kind.entry("unless", len(unless)+1, false, c.matcher()))
				default:
					positive[kind.match] = append(positive[kind.match], c.matcher())
				}
			}
		}
	}
	for _, a := range []actions{ofHeaders, ofQuery} {
		if all := positive[a.match]; len(all) > 0 {
			when = append(when, a.entry("when", len(when)+1, true, all...))
		}
	}
	if _, ok := first["path"]; ok {
		p.note("a path is compared with its query, as in Envoy Gateway, which also merges slashes before: write " +
			"pathNormalization DECODE_AND_MERGE_SLASHES into Istio's mesh configuration")
	}
	if n, ok := first["sourceCIDR"]; ok {
		from = in.block(p, n)
		from, distinct = from[:1], append(distinct, from[1:]...)
	}
	return slices.Concat(when, unless, from, distinct)
}

// A condition is one match of a client selector.
type condition struct {
	name   string // of a header or parameter
	kind   string // Exact, RegularExpression, PathPrefix or Distinct
	value  string
	invert bool
}

// matches returns the conditions of a field of a client selector. Methods are one condition: one of them must fit.
func (in *input) matches(n node, kind matchKind) (all []condition) {
	items := []node{n}
	if kind.field != "path" {
		items = in.list(n, kind.field)
	} else if !n.exists() {
		return nil
	}
	for _, item := range items {
		in.only(item, kind.field, kind.names...)
		c := condition{
			name: cmp.Or(kind.header, item.get("name").text()), value: item.get("value").text(), invert: in.flag(item, "invert"),
			kind: cmp.Or(in.oneOf(item, "type", kind.types...), kind.types[0]),
		}
		if kind.actions == ofHeaders {
			c.name = strings.ToLower(c.name)
		}
		if kind.field == "methods" {
			in.oneOf(item, "value", httpMethods...)
		}
		hasValue := c.value != "" ||
			item.get("value").exists() && kind.actions == ofHeaders && c.kind != "RegularExpression"
		switch {
		case c.name == "":
			in.refuse(item, "%s needs name", kind.field)
		case strings.ContainsFunc(c.name+c.value, unicode.IsControl):
			in.refuse(item, "%s has a control character, which Envoy refuses; write printable ones", kind.field)
		case (c.kind == "Distinct") == hasValue || c.kind == "Distinct" && c.invert:
			in.refuse(item, "%s needs a value, or type: Distinct without value and invert", kind.field)
		case c.kind == "RegularExpression":
			if _, err := regexp.Compile(c.value); err != nil {
				in.refuse(item, "%v; write a regular expression of RE2", err)
			}
		}
		if kind.field != "methods" || len(all) == 0 {
			all = append(all, c)
			continue
		}
		first := &all[0]
		if c.invert || first.invert || slices.Contains(strings.Split(first.value, "|"), c.value) {
			in.refuse(item, "Envoy Gateway counts a request once per method that fits, so twice; write an inverted method "+
				"alone, and each method once")
		}
		first.kind, first.value = "RegularExpression", first.value+"|"+c.value
	}
	return all
}

// matcher returns Envoy's matcher of a header or query parameter.
func (c condition) matcher() fields {
	form, regex := fields{"exact": c.value}, c.value
	if c.kind == "PathPrefix" { // Envoy Gateway's regex, because :path contains the query
		regex = "^" + regexp.QuoteMeta(strings.TrimSuffix(c.value, "/")) + `(/.*|\?.*|#.*|;.*|$)`
	}
	switch {
	case c.kind == "PathPrefix" && c.value == "/":
		form = fields{"prefix": c.value}
	case c.kind != "Exact":
		form = fields{"safe_regex": fields{"regex": regex}}
	}
	return fields{"name": c.name, "string_match": form}
}

// block returns the entry for a block of client addresses, and another one if each address has a counter.
func (in *input) block(p *policy, n node) []entry {
	in.only(n, "sourceCIDR", "type", "value", "invert")
	block, err := netip.ParsePrefix(n.get("value").text())
	if err != nil {
		in.refuse(n, "sourceCIDR needs value, a block of addresses such as 10.0.0.0/8")
	}
	block = block.Masked()
	address := fields{
		"ranges":       []any{fields{"address_prefix": block.Addr().String(), "prefix_len": block.Bits()}},
		"invert_match": in.flag(n, "invert"),
	}
	value := "net-" + strings.ReplaceAll(block.String(), "/", "-")
	if in.flag(n, "invert") {
		value = "not-" + value
	} else if block.Bits() == 0 {
		p.note("%s leaves clients of the other IP version unlimited, as in Envoy Gateway; a rule for them limits them", block)
	}
	match := func(key, value string) fields {
		return fields{"remote_address_match": fields{
			"descriptor_key": key, "descriptor_value": value, "address_matcher": address,
		}}
	}
	entries := []entry{{key: "from", value: value, action: match("from", value)}}
	if in.oneOf(n, "type", "Exact", "Distinct") == "Distinct" {
		each := match("remote_address", "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%")
		entries = append(entries, entry{key: "remote_address", action: each})
	}
	return entries
}

// oneOf returns the text of a field, which must be one of the values; of an absent field, "".
func (in *input) oneOf(n node, name string, values ...string) string {
	value := n.get(name)
	if value.exists() && !slices.Contains(values, value.text()) {
		in.refuse(value, "%s must be one of %s", name, strings.Join(values, ", "))
	}
	return value.text()
}

// flag returns a field that is true or false; an absent field is false.
func (in *input) flag(n node, name string) bool { return in.oneOf(n, name, "true", "false") == "true" }

// number returns the number of a field, which must exist.
func (in *input) number(n node, name string, most int64) int64 {
	text := n.get(name).text()
	number, err := strconv.ParseInt(text, 10, 64)
	if err != nil || number < 0 || number > most || text != strconv.FormatInt(number, 10) { // 010 is 8 in YAML
		in.refuse(n.get(name), "%s must be a number from 0 to %d", name, most)
	}
	return number
}
