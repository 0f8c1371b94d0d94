package istio

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// A policy is a BackendTrafficPolicy of Envoy Gateway with its global rate limits.
type policy struct {
	*object

	isLimit bool    // spec.rateLimit exists: without it, the policy only exempts its targets
	merge   string  // spec.mergeType, or empty: limits replace those of the Gateway
	limits  []limit // in the order of the rules

	isAttached, hasPlace bool   // to a target of the input; in a workload
	why                  string // the last of its places without limits has none
}

// over returns the limits of a route whose policy is p, at a listener whose policy is parent. Both may be nil.
func (p *policy) over(parent *policy) []limit {
	p, parent = cmp.Or(p, &policy{merge: "StrategicMerge"}), cmp.Or(parent, &policy{})
	if p.merge == "" || p.merge == "JSONMerge" && len(p.limits) > 0 {
		return p.limits
	}
	return slices.Concat(parent.limits, p.limits)
}

// headerOptions are Envoy's values of x_ratelimit_option for those of xRateLimitHeaders.
var headerOptions = map[string]string{"Off": "OFF", "DraftVersion03": "DRAFT_VERSION_03"}

// readPolicy reads the limits of a BackendTrafficPolicy.
func (in *input) readPolicy(o *object) *policy {
	spec := o.root.get("spec")
	in.schemas["policy"].check(o.root, "")
	p := &policy{object: o, isLimit: spec.get("rateLimit").exists(), merge: spec.text("mergeType")}
	for i, n := range spec.get("rateLimit", "global").items("rules") {
		l := limit{
			at: n, rule: fmt.Sprintf("%s/%d", p.fullName(), i), isPerRoute: n.text("shared") != "true", entries: conditions(n),
			requests: n.get("limit").count(n.text("limit", "requests")), unit: strings.ToLower(n.text("limit", "unit")),
			shadowMode: n.text("shadowMode") == "true", options: fields{},
		}
		n.reportf("%s", &l)
		if !l.isPerRoute {
			n.reportf("Envoy Gateway has a filter of its own for shared rules, and after a denial the next filters charge " +
				"nothing; Weir charges all rules that match")
		}
		if option, ok := headerOptions[n.text("xRateLimitHeaders")]; ok {
			l.options["x_ratelimit_option"] = option
		}
		if cost := n.get("cost", "request"); cost.exists() {
			l.options["hits_addend"] = hits(cost)
		}
		p.limits = append(p.limits, l)
		if cost := n.get("cost", "response"); cost.exists() {
			l.options = maps.Clone(l.options)
			l.options["hits_addend"], l.options["apply_on_stream_done"] = hits(cost), true
			p.limits = append(p.limits, l)
		}
	}
	switch {
	case len(p.limits) > 0:
		o.root.reportf("after a denial, Envoy Gateway charges the other limits, too: start Weir with --charge-each")
	case p.isLimit:
		o.root.reportf("rateLimit has no rules, so it limits nothing")
	}
	return p
}

// hits returns hits_addend of a cost.
func hits(cost node) fields {
	number := cost.count(cost.text("number"))
	if number == 0 {
		cost.reportf("a cost of 0 charges nothing: start Weir with --allow-peek-at-limit")
	}
	return fields{"number": number}
}

// conditions returns the entries of a rule's client selectors, which all must hold.
func conditions(rule node) []entry {
	values := map[string][]node{} // of all selectors by field
	for _, selector := range rule.items("clientSelectors") {
		for key := range selector.fields() {
			first := values[key.Value]
			if len(first) > 0 && key.Value != "headers" && key.Value != "queryParams" {
				key.refuse("a rule has two %s (see %s), of which Envoy Gateway ignores the first, or counts both; write one",
					key.Value, first[0].position())
			}
			values[key.Value] = append(first, selector.items(key.Value)...)
		}
	}
	var when, unless, from, each []entry
	positive := map[part][]any{} // matchers
	for _, field := range []string{"headers", "methods", "path", "queryParams"} {
		for i, n := range values[field] {
			of, name, kind, value := ofHeaders, strings.ToLower(n.text("name")), n.text("type"), n.text("value")
			switch field {
			case "methods":
				name, value = ":method", methods(values[field])
				if len(values[field]) > 1 {
					kind = "RegularExpression"
				}
			case "path":
				name, kind = ":path", cmp.Or(kind, "PathPrefix")
				n.reportf("a path is compared with its query, as in Envoy Gateway, which also merges slashes before: write " +
					"pathNormalization DECODE_AND_MERGE_SLASHES into Istio's mesh configuration")
			case "queryParams":
				of, name = ofQuery, n.text("name")
			}
			checkValue(n)
			switch {
			case field == "methods" && i > 0: // the first has them all
			case kind == "Distinct":
				each = append(each, of.eachValue(name, false))
			case n.text("invert") == "true":
				unless = append(unless, of.matching("unless", len(unless)+1, n.matcher(name, kind, value)))
			default:
				positive[of] = append(positive[of], n.matcher(name, kind, value))
			}
		}
	}
	for _, of := range []part{ofHeaders, ofQuery} {
		if all := positive[of]; len(all) > 0 {
			when = append(when, of.matching("when", len(when)+1, all...))
		}
	}
	for _, n := range values["sourceCIDR"] {
		block, addresses := sourceCIDR(n)
		from, each = append(from, block), append(each, addresses...)
	}
	return slices.Concat(when, unless, from, each)
}

// checkValue refuses what the schema cannot: a value beside Distinct, or none, and wrong regular expressions.
func checkValue(n node) {
	value, isDistinct, isRegex := n.get("value"), n.text("type") == "Distinct", n.text("type") == "RegularExpression"
	if isDistinct == value.exists() || isDistinct && n.text("invert") == "true" || isRegex && value.text() == "" {
		n.refuse("a match needs a value, or type: Distinct without value and invert")
	}
	if _, err := regexp.Compile(value.text()); err != nil && isRegex {
		n.refuse("%v; write a regular expression of RE2", err)
	}
	for _, class := range classes.FindAllStringSubmatch(value.text(), -1) {
		name, isKnown := class[1], unicode.Categories[class[1]] != nil || unicode.Scripts[class[1]] != nil
		if isRegex && name != "" && name != "Any" && (!isKnown || name == "LC" || name == "Cn") {
			n.refuse("Envoy's RE2 has no class %s; write other classes, or ranges such as [a-z]", class[0])
		}
	}
}

// classes matches escaped characters, such as \p{Greek} with the name in a group. Go has more names than RE2.
var classes = regexp.MustCompile(`\\(?:[pP]\{\^?([^}]*)\}|.)`)

// methods returns a regular expression for one of the methods, which may be inverted only alone.
func methods(all []node) string {
	var texts []string
	for _, n := range all {
		if n.text("invert") == "true" && len(all) > 1 || slices.Contains(texts, n.text("value")) {
			n.refuse("Envoy Gateway counts a request once per method that fits, so twice; write an inverted method alone, and " +
				"each method once")
		}
		texts = append(texts, n.text("value"))
	}
	return strings.Join(texts, "|")
}

// matcher returns Envoy's matcher of a header or query parameter for a type and value of a client selector.
func (n node) matcher(name, kind, value string) any {
	match := fields{"exact": value}
	switch {
	case kind == "RegularExpression":
		return n.regex(name, value)
	case kind == "PathPrefix" && value == "/":
		match = fields{"prefix": value}
	case kind == "PathPrefix": // Envoy Gateway's regex, because :path contains the query
		return n.regex(name, "^"+regexp.QuoteMeta(strings.TrimSuffix(value, "/"))+`(/.*|\?.*|#.*|;.*|$)`)
	}
	return fields{"name": name, "string_match": match}
}

// sourceCIDR returns the entry for a block of client addresses, and another one if each address has a counter.
func sourceCIDR(n node) (from entry, each []entry) {
	block, err := netip.ParsePrefix(n.text("value"))
	if err != nil {
		n.refuse("sourceCIDR needs value, a block of addresses such as 10.0.0.0/8")
	}
	block = block.Masked()
	value := "net-" + strings.ReplaceAll(block.String(), "/", "-")
	if n.text("invert") == "true" {
		value = "not-" + value
	} else if block.Bits() == 0 {
		n.reportf("%s leaves clients of the other IP version unlimited, as in Envoy Gateway; add a rule for them", block)
	}
	match := func(key, value string) fields {
		return fields{"remote_address_match": fields{
			"descriptor_key": key, "descriptor_value": value, "address_matcher": fields{
				"ranges":       []any{fields{"address_prefix": block.Addr().String(), "prefix_len": block.Bits()}},
				"invert_match": n.text("invert") == "true",
			},
		}}
	}
	if n.text("type") == "Distinct" {
		each = []entry{{key: "remote_address", action: match("remote_address", "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%")}}
	}
	return entry{key: "from", value: value, action: match("from", value)}, each
}
