package istio

import (
	"cmp"
	_ "embed"
	"maps"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/weir-ratelimit/weir/internal/words"
)

// A schema describes a value: it has either fields, items or a text. Without them, the value may be anything.
type schema struct {
	Name     string             // of the value in errors; by default, the field's
	Fields   map[string]*schema // a field * is any
	Ignored  []string           // further fields, which are only reported
	Items    *schema
	Text     *regexp.Regexp
	Required bool   // the field must exist
	Instead  string // what to write instead of another text, or of no field
	Most     int    // maximum number of items; 0 is any number
	Empty    string // what to do instead of writing an empty value; by default, the value may be empty
}

//go:embed schema.yaml
var schemaText []byte

// check refuses what the schema of a value does not allow. name is its field's.
func (s *schema) check(n node, name string) {
	name = cmp.Or(s.Name, name)
	switch {
	case s.Items != nil && n.Kind != yaml.SequenceNode:
		n.refuse("%s must be a list: [a, b], or lines that start with -", name)
	case s.Fields != nil && n.Kind != yaml.MappingNode:
		n.refuse("%s must be fields with values (name: value)", name)
	case s.Text != nil && (n.Kind != yaml.ScalarNode || !s.Text.MatchString(n.text())):
		n.refuse("%s has the value %q; write %s", name, n.text(), s.Instead)
	case s.Empty != "" && len(n.Content) == 0:
		n.refuse("%s is empty; %s", name, s.Empty)
	case s.Most > 0 && len(n.Content) > s.Most:
		n.refuse("%s has %d items, the maximum is %d; write fewer", name, len(n.Content), s.Most)
		n.Content = nil // so many are not read
	case s.Items != nil:
		for _, item := range n.Content {
			s.Items.check(node{item, n.in, n.file}, name)
		}
	case s.Fields != nil:
		s.checkFields(n, name)
	}
}

func (s *schema) checkFields(n node, name string) {
	names := slices.Sorted(maps.Keys(s.Fields))
	for key, value := range n.fields() {
		switch field := cmp.Or(s.Fields[key.Value], s.Fields["*"]); {
		case slices.Contains(s.Ignored, key.Value):
			key.reportf("%s is not Weir's and has no effect in Istio", key.Value)
		case field == nil:
			hint := "allowed are " + strings.Join(names, ", ")
			if nearest := words.Nearest(key.Value, names); nearest != "" {
				hint = "did you mean " + nearest + "?"
			}
			key.refuse("%s has no field %s; %s", name, words.Shown(key.Value), hint)
		case !value.exists():
			key.refuse("%s has no value; write one, or remove the field", key.Value)
		default:
			field.check(value, key.Value)
		}
	}
	for _, field := range names {
		if s.Fields[field].Required && n.get(field).Kind == 0 {
			n.refuse("%s is missing; write %s", field, s.Fields[field].Instead)
		}
	}
}
