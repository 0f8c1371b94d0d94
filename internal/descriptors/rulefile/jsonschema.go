package rulefile

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// SchemaURL is the address of JSONSchema on the site.
const SchemaURL = "https://weir-ratelimit.github.io/weir/reference/rules.schema.json"

// JSONSchema returns the JSON Schema of a document of a rule file, in draft 2020-12, with a newline at the end. Editors
// use it to complete fields and mark errors. It accepts every document that Compile accepts, except limits that are
// valid only because a default names their algorithm. Compile finds more errors: the schema neither compares rules nor
// sees the meaning of a regular expression or an address block.
func JSONSchema() []byte {
	r := newReader(File{}, descriptors.NewBuilder(descriptors.Process{}))
	exclusive := slices.Concat(
		atMostOne("value", "values", "values_file", "cidr", "regex"), atMostOne("rate_limit", "rate_limits"))
	data, _ := json.MarshalIndent(shape{
		"$schema": "https://json-schema.org/draft/2020-12/schema",
		"$id":     SchemaURL,
		"title":   "Rule file of Weir",
		"if":      shape{"required": []string{"defaults"}},
		"then":    ref("document_with_defaults"),
		"else":    ref("document"),
		"$defs": shape{
			"document":               levelShape(r.documentFields, has("descriptors")),
			"document_with_defaults": levelShape(r.defaultsSchema()),
			"descriptor":             levelShape(r.descriptorFields, exclusive...),
			"limit":                  levelShape(r.rateLimitFields, limitRules()...),
			"rated_limit":            shape{"allOf": []shape{ref("limit"), rateRule(r.rateLimitFields.names)}},
			"replaces":               levelShape(r.replacesFields),
			"reservation":            levelShape(r.reservationFields, valueShape),
			"response":               levelShape(r.responseFields, shape{"anyOf": []shape{has("headers"), has("body")}}),
			"default":                levelShape(r.defaultSchema()),
			"for":                    levelShape(r.forSchema()),
		},
	}, "", "  ") // there is no error, because shapes have only values that JSON has
	return append(data, '\n')
}

// levelShape is the shape of a level of a rule file, with the fields in the order of its table.
func levelShape[T any](s *schema[T], rules ...shape) shape {
	var fields []string
	for i, name := range s.names {
		form, _ := json.Marshal(s.shapes[i])
		fields = append(fields, fmt.Sprintf("%q:%s", name, form))
	}
	if s.must != "" {
		rules = append(rules, has(s.must))
	}
	level := shape{
		"title": s.what, "type": objectShape["type"], "properties": json.RawMessage("{" + strings.Join(fields, ",") + "}"),
		"patternProperties": shape{"^x-": true}, "additionalProperties": false,
	}
	if len(rules) > 0 {
		level["allOf"] = rules
	}
	return level
}

func algorithmsThat(have func(a limiter.Algorithm) bool) []limiter.Algorithm {
	return slices.DeleteFunc(limiter.Algorithms(), func(a limiter.Algorithm) bool { return !have(a) })
}

// algorithmIn is the shape of a limit with one of the algorithms.
func algorithmIn(all []limiter.Algorithm) shape {
	s := where(nameShape(step.Names(all)...), "algorithm")
	if !slices.Contains(all, limiter.FixedWindow) { // the default
		s["allOf"] = []shape{has("algorithm")}
	}
	return s
}

// limitRules returns the rules for fields of a limit that do not go together, also in defaults.
func limitRules() []shape {
	rules := []shape{{"if": has("lease_for"), "then": shape{"allOf": []shape{
		has("consistency"), where(nameShape("leased"), "consistency"),
	}}}}
	for _, field := range append(slices.Clone(descriptors.FieldsOf(0)), "reservation") {
		takers := algorithmsThat(func(a limiter.Algorithm) bool {
			return slices.Contains(descriptors.FieldsOf(a), field) || field == "reservation" && a.Kind().Is(step.Prepayable)
		})
		why := field + " is a field of " + strings.Join(step.Names(takers), ", ")
		rules = append(rules, shape{"if": algorithmIn(takers), "else": without(why, field)})
	}
	return rules
}

// rateRule is the rule for the rate of a limit outside of defaults. fields are all fields of a limit.
func rateRule(fields []string) shape {
	const why = "unlimited: true and this field contradict each other; remove one of the two"
	others := slices.DeleteFunc(slices.Clone(fields), func(name string) bool {
		return slices.Contains([]string{"unlimited", "name", "replaces", "requests_per_unit", "description", "owner"}, name)
	})
	return shape{
		"if":   shape{"allOf": []shape{has("unlimited"), where(yesShape, "unlimited")}},
		"then": without(why, others...),
		"else": shape{"allOf": append(slices.Concat(atMostOne("unit", "window"), atMostOne("window", "unit_multiplier")),
			has("requests_per_unit"),
			shape{
				"if":   algorithmIn(algorithmsThat(limiter.Algorithm.CountsInFlight)),
				"then": without("concurrency counts requests in flight: write lease: 60s", "unit", "unit_multiplier", "window"),
				"else": shape{"anyOf": []shape{has("unit"), has("window")}},
			},
		)},
	}
}
