package rulefile

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// SchemaURL is the address of JSONSchema on the site.
const SchemaURL = "https://weir-ratelimit.github.io/weir/reference/rules.schema.json"

// JSONSchema returns the JSON Schema of a document of a rule file, in draft 2020-12, with a newline at the end. Editors
// use it to complete fields and mark errors. It accepts every document that Compile accepts, except limits that are valid
// only because a default names their algorithm. Compile finds more errors: the schema neither compares rules nor sees
// the meaning of a regular expression or an address block.
func JSONSchema() []byte {
	r := newReader(File{}, descriptors.NewBuilder(descriptors.Process{}))
	data, _ := json.MarshalIndent(shape{
		"$schema": "https://json-schema.org/draft/2020-12/schema",
		"$id":     SchemaURL,
		"title":   "Rule file of Weir",
		"if":      shape{"required": []string{"defaults"}},
		"then":    ref("document_with_defaults"),
		"else":    ref("document"),
		"$defs": shape{
			"document":               levelShape(r.documentFields, shape{"required": []string{"descriptors"}}),
			"document_with_defaults": levelShape(r.defaultsSchema()),
			"descriptor": levelShape(r.descriptorFields, slices.Concat(
				atMostOne("value", "values", "values_file", "cidr", "regex"), atMostOne("rate_limit", "rate_limits"))...),
			"limit":       optional(levelShape(r.rateLimitFields, limitRules()...)),
			"rated_limit": shape{"allOf": []shape{ref("limit"), rateRule(r.rateLimitFields.names)}},
			"replaces":    levelShape(r.replacesFields),
			"reservation": levelShape(r.reservationFields),
			"response":    optional(levelShape(r.responseFields, shape{"anyOf": []shape{has("headers"), has("body")}})),
			"default":     levelShape(r.defaultSchema()),
			"for":         levelShape(r.forSchema()),
		},
	}, "", "  ") // there is no error, because shapes have only values that JSON has
	return append(data, '\n')
}

// levelShape is the shape of a level of a rule file.
func levelShape[T any](s *schema[T], rules ...shape) shape {
	level := shape{
		"title": s.what, "type": []string{"object"}, "properties": (*properties[T])(s),
		"patternProperties": shape{"^x-": true}, "additionalProperties": false,
	}
	if s.must != "" {
		level["required"] = []string{s.must}
	}
	if len(rules) > 0 {
		level["allOf"] = rules
	}
	return level
}

// optional is the shape of a level that may be left out.
func optional(level shape) shape {
	level["type"] = []string{"object", "null"}
	return level
}

// properties are the shapes of the fields of a level, in the order of its table.
type properties[T any] schema[T]

// MarshalJSON implements json.Marshaler.
func (p *properties[T]) MarshalJSON() ([]byte, error) {
	b := []byte("{")
	for i, name := range p.names {
		field, err := json.Marshal(shape{name: p.shapes[i]})
		if err != nil {
			return nil, err
		}
		b = append(append(b, field[1:len(field)-1]...), ',')
	}
	return append(bytes.TrimSuffix(b, []byte(",")), '}'), nil
}

// algorithmIn is the shape of a limit with one of the algorithms.
func algorithmIn(all []limiter.Algorithm) shape {
	s := where(nameShape(step.Names(all)...), "algorithm")
	if !slices.Contains(all, limiter.FixedWindow) { // the default
		s["allOf"] = []shape{has("algorithm")}
	}
	return s
}

func algorithmsThat(have func(a limiter.Algorithm) bool) []limiter.Algorithm {
	return slices.DeleteFunc(limiter.Algorithms(), func(a limiter.Algorithm) bool { return !have(a) })
}

// limitRules returns the rules for fields of a limit that do not go together, also in defaults.
func limitRules() (rules []shape) {
	for _, field := range descriptors.FieldsOf(0) {
		takers := algorithmsThat(func(a limiter.Algorithm) bool { return slices.Contains(descriptors.FieldsOf(a), field) })
		if len(takers) < len(limiter.Algorithms()) {
			why := field + " is a field of " + strings.Join(step.Names(takers), ", ")
			rules = append(rules, shape{"if": algorithmIn(takers), "else": without(why, field)})
		}
	}
	prepayable := algorithmsThat(func(a limiter.Algorithm) bool { return a.Kind().Is(step.Prepayable) })
	names := strings.Join(step.Names(prepayable), ", ")
	return append(rules,
		shape{"if": algorithmIn(prepayable), "else": shape{"allOf": []shape{
			where(nameShape("strict"), "consistency"), without("reservation is a field of "+names, "reservation"),
		}}},
		shape{"if": has("lease_for"), "then": shape{"allOf": []shape{
			has("consistency"), where(nameShape("leased"), "consistency"),
		}}},
	)
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
