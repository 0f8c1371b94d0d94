//go:build e2e

package peer

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// style selects the features that a random case omits because of known differences.
type style struct {
	noModes  bool // shadow and quota
	noNames  bool // names, replaces and shared counters
	noTwice  bool // one counter twice in a request
	noLimits bool // limits that requests bring along
}

// rule is a descriptor of a rule file.
type rule struct {
	key, value string
	flags      []string // shadow_mode and others that are true
	limit      *limit
	children   []*rule
}

type limit struct {
	requests  uint32
	unit      string // in any case
	unlimited bool
	name      string
	replaces  []string
}

var (
	keys       = []string{"a", "b", "c"}
	ruleValues = []string{"", "", "", "x", "y", "x1", "x*", "x1*", "*", "/p/*", "/p/q", "ü"}
	askValues  = []string{"x", "y", "x1", "x12", "z", "/p/q", "/p/r", "/q", "", "ü"}
	rates      = []uint32{0, 1, 2, 3, 4, 5, 7, 10, 100, 1_000_000, 4_294_967_295}
	limitNames = []string{"n1", "n2", "n3"}
	units      = []string{"second", "minute", "hour", "day", "week", "month", "year", "HOUR", "Day"}
)

// quotaName is the name of each limit in quota mode, by which statuses show that they are of a quota.
const quotaName = "quota"

// chance is true once in n times.
func chance(rng *rand.Rand, n int) bool { return rng.IntN(n) == 0 }

func pick[T any](rng *rand.Rand, of []T) T { return of[rng.IntN(len(of))] }

// randomRules returns the rules of a domain: up to four siblings on each of up to three levels.
func randomRules(rng *rand.Rand, depth int, s style) []*rule {
	var rules []*rule
	seen := map[string]bool{}
	for range 1 + rng.IntN(4) {
		r := &rule{key: pick(rng, keys), value: pick(rng, ruleValues)}
		id := r.key + "\x00" + r.value
		if seen[id] {
			continue
		}
		seen[id] = true
		r.flags = randomFlags(rng, r, s)
		if !chance(rng, 5) {
			r.limit = randomLimit(rng, s, slices.Contains(r.flags, "quota_mode"))
		}
		if depth > 1 && (r.limit == nil || chance(rng, 3)) {
			r.children = randomRules(rng, depth-1, s)
		}
		rules = append(rules, r)
	}
	return rules
}

func randomFlags(rng *rand.Rand, r *rule, s style) []string {
	var set []string
	for _, f := range []string{"detailed_metric", "value_to_metric"} {
		if chance(rng, 8) {
			set = append(set, f)
		}
	}
	for _, f := range []string{"shadow_mode", "quota_mode"} {
		if !s.noModes && chance(rng, 5) {
			set = append(set, f)
		}
	}
	if !s.noNames && strings.HasSuffix(r.value, "*") && chance(rng, 3) {
		set = append(set, "share_threshold")
	}
	return set
}

func randomLimit(rng *rand.Rand, s style, isQuota bool) *limit {
	l := &limit{requests: pick(rng, rates), unit: pick(rng, units)}
	if chance(rng, 12) {
		l.unlimited, l.unit = true, ""
	}
	if s.noNames {
		return l
	}
	if isQuota {
		l.name = quotaName
	} else if chance(rng, 3) {
		l.name = pick(rng, limitNames)
	}
	if chance(rng, 6) {
		for _, name := range append([]string{quotaName}, limitNames...) {
			if name != l.name && chance(rng, 2) {
				l.replaces = append(l.replaces, name)
			}
		}
	}
	return l
}

// ruleFile returns the rules of a domain as a file.
func ruleFile(domain string, rules []*rule) string {
	var b strings.Builder
	fmt.Fprintf(&b, "domain: %s\n", domain)
	writeList(&b, rules, "")
	return b.String()
}

func writeList(b *strings.Builder, rules []*rule, indent string) {
	fmt.Fprintf(b, "%sdescriptors:\n", indent)
	for _, r := range rules {
		fmt.Fprintf(b, "%s  - key: %q\n", indent, r.key)
		if r.value != "" {
			fmt.Fprintf(b, "%s    value: %q\n", indent, r.value)
		}
		for _, f := range r.flags {
			fmt.Fprintf(b, "%s    %s: true\n", indent, f)
		}
		if r.limit != nil {
			fmt.Fprintf(b, "%s    rate_limit: {%s}\n", indent, r.limit)
		}
		if len(r.children) > 0 {
			writeList(b, r.children, indent+"    ")
		}
	}
}

// String returns the fields of the limit as in a rule file.
func (l *limit) String() string {
	var fields []string
	if l.unlimited {
		fields = append(fields, "unlimited: true")
	} else {
		fields = append(fields, fmt.Sprintf("requests_per_unit: %d, unit: %s", l.requests, l.unit))
	}
	if l.name != "" {
		fields = append(fields, "name: "+l.name)
	}
	if len(l.replaces) > 0 {
		fields = append(fields, "replaces: [{name: "+strings.Join(l.replaces, "}, {name: ")+"}]")
	}
	return strings.Join(fields, ", ")
}
