package rulefile

import (
	"regexp"
	"strings"

	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/internal/words"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// shape is the JSON Schema of a value of a field, or of a whole level. It accepts every value that the reader accepts;
// null is a field that is left out. The YAML language server shows its errorMessage.
type shape map[string]any

var (
	textShape  = shape{"type": []string{"string", "number", "boolean", "null"}} // true and 1.0 are texts, as written
	givenText  = shape{"type": []string{"string", "number", "boolean"}, "minLength": 1}
	valueShape = shape{
		"type": []string{"string", "number", "boolean", "object", "array"}, "minLength": 1, "errorMessage": "write a value",
	}
	objectShape   = shape{"type": []string{"object", "null"}}
	storeShape    = shape{"type": textShape["type"], "pattern": "^[a-z0-9_]+$"}
	durationShape = shape{
		"type": []string{"string", "null"}, "pattern": `^(([0-9]+\.?[0-9]*|\.[0-9]+)([nuµμm]?s|[mhdw]))+$`,
		"errorMessage": words.DurationForm,
	}
	booleanShape = shape{ // the words of YAML 1.1 are texts in YAML 1.2
		"type": []string{"boolean", "string", "null"}, "pattern": anyCase("yes|y|no|n|on|off"),
		"errorMessage": "write true or false, without quotes",
	}
	yesShape  = shape{"type": []string{"boolean", "string"}, "not": shape{"const": false}, "pattern": anyCase("yes|y|on")}
	unitShape = shape{"anyOf": []shape{
		nameShape(unitNames...), {"type": "string", "pattern": anyCase(strings.Join(unitNames, "|"))},
	}}
	algorithmShape = nameShape(step.Names(limiter.Algorithms())...)
	hitsShape      = integerShape(1, maxNumber)
)

// anyCase returns a pattern for words in upper and lower case, because JSON Schema's patterns have no flag for that.
func anyCase(words string) string {
	letter := func(c string) string { return "[" + c + strings.ToUpper(c) + "]" }
	return "^(" + regexp.MustCompile("[a-z]").ReplaceAllStringFunc(words, letter) + ")$"
}

// nameShape is the shape of one of these names. An empty name is a default without a name.
func nameShape(names ...string) shape {
	all := []any{}
	for _, name := range names {
		if name != "" {
			all = append(all, name)
		}
	}
	return shape{"enum": append(all, nil)}
}

// integerShape is the shape of a whole number. 1_000 is a number in YAML 1.1, but a text in YAML 1.2.
func integerShape(least, most int64) shape {
	return shape{
		"type": []string{"integer", "string", "null"}, "minimum": least, "maximum": most,
		"pattern": "^[0-9]+(_[0-9]+)+$", "errorMessage": "write a whole number, without quotes",
	}
}

// parameterShape is the shape of the values that reader.parameter reads.
func parameterShape(p *step.Parameter[limiter.Params]) shape {
	switch {
	case p.IsZone():
		return textShape
	case p.Names != nil:
		return nameShape(p.Names...)
	case p.Scale != 0:
		return shape{
			"type": []string{"number", "string", "null"}, "pattern": `^[0-9]*\.?[0-9]+$`,
			"minimum": p.Shown(max(p.Least, p.Step, 1)), "maximum": p.Shown(p.Most),
		}
	case p.IsTime():
		return durationShape
	default:
		return integerShape(1, min(p.Most, maxNumber))
	}
}

// listShape is the shape of a list with at least that many items.
func listShape(items shape, least int) shape {
	return shape{"type": []string{"array", "null"}, "items": items, "minItems": least}
}

// ref is the shape with that name in JSONSchema.
func ref(name string) shape { return shape{"$ref": "#/$defs/" + name} }

// where is the shape of an object in which these fields have the form. Editors do not propose patternProperties, so
// that a rule does not change what they insert for a field.
func where(form shape, fields ...string) shape {
	return shape{"patternProperties": shape{"^(" + strings.Join(fields, "|") + ")$": form}}
}

// has is the shape of an object in which the field has a value.
func has(field string) shape {
	s := where(valueShape, field)
	s["required"] = []string{field}
	return s
}

// without is the shape of an object in which these fields have no value. An editor shows why.
func without(why string, fields ...string) shape {
	return where(shape{"type": "null", "errorMessage": why}, fields...)
}

// atMostOne returns the rules for an object in which at most one of these fields has a value.
func atMostOne(fields ...string) (rules []shape) {
	for i, field := range fields[:len(fields)-1] {
		why := "this field and " + field + " are both given; remove one of the two"
		rules = append(rules, shape{"if": has(field), "then": without(why, fields[i+1:]...)})
	}
	return rules
}
