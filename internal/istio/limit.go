package istio

import (
	"fmt"
	"strconv"
	"strings"
)

// A limit is one rate limit of a workload: the descriptor that Envoy sends, and the rule of Weir that answers it.
type limit struct {
	at         node    // in the input
	rule       string  // value of the entry limit, and name of the rule: NAMESPACE/OWNER/LIMIT, unique in the domain
	isPerRoute bool    // each route of each host of each gateway has counters of its own
	entries    []entry // of the descriptor, after those for the rule and the route
	requests   uint64  // per unit
	unit       string  // second to year, as in a rule file
	shadowMode bool
	options    fields // further fields of Envoy's message RateLimit
}

// An entry is one entry of a descriptor: its key and value in the rule, and the action with which Envoy sends it.
type entry struct {
	key      string
	value    string // empty: every value has a counter of its own
	optional bool   // the rule without this entry has a counter, too: requests without it share one
	action   fields // of Envoy's RateLimit.Action, in JSON's field names
}

// descriptor returns the entries that the workload's Envoys send.
func (l *limit) descriptor(w *workload) []entry {
	constant := func(key, value string) fields {
		return fields{"generic_key": fields{"descriptor_key": key, "descriptor_value": value}}
	}
	all := []entry{{key: "limit", value: l.rule, action: constant("limit", l.rule)}}
	if l.isPerRoute {
		all = append(all, entry{key: "gateway", action: constant("gateway", w.fullName())},
			expression("host", "xds.virtual_host_name", false), expression("route", "xds.route_name", false))
	}
	return append(all, l.entries...)
}

// String describes the limit for the report.
func (l *limit) String() string {
	counters := []string{"one counter"}
	for _, e := range l.descriptor(&workload{}) {
		if e.value == "" {
			counters = append(counters, e.key)
		}
	}
	return fmt.Sprintf("limit %s: %d per %s in fixed windows, %s", l.rule, l.requests, l.unit,
		strings.Join(counters, " per "))
}

// A part is a part of requests: the names of Envoy's actions for it, and of their fields.
type part struct{ match, matchers, each, name, prefix string }

var (
	ofHeaders = part{"header_value_match", "headers", "request_headers", "header_name", "header:"}
	ofQuery   = part{
		"query_parameter_value_match", "query_parameters", "query_parameters", "query_parameter_name", "query:",
	}
)

// matching returns an entry for requests that all matchers match, or with the key unless, that not all of them match.
func (p part) matching(key string, number int, matchers ...any) entry {
	value := strconv.Itoa(number)
	return entry{key: key, value: value, action: fields{p.match: fields{
		"descriptor_key": key, "descriptor_value": value, "expect_match": key != "unless", p.matchers: matchers,
	}}}
}

// eachValue returns the entry with the value of a header or query parameter. Requests without it share a counter if it
// is optional; else the limit does not apply to them.
func (p part) eachValue(name string, optional bool) entry {
	config := fields{"descriptor_key": p.prefix + name, p.name: name}
	if optional {
		config["skip_if_absent"] = true
	}
	return entry{key: p.prefix + name, optional: optional, action: fields{p.each: config}}
}

// expression returns the entry with the value of a CEL expression, which may be optional as in eachValue.
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

// regex returns Envoy's matcher for a regular expression of the whole value of a header or query parameter.
func (n node) regex(name, pattern string) any {
	if len(pattern) > maxRegex {
		n.refuse("the condition on %s has %d bytes, and Envoy refuses large ones (above %d); write more limits", name,
			len(pattern), maxRegex)
	}
	return fields{"name": name, "string_match": fields{"safe_regex": fields{"regex": pattern}}}
}
