package rulefile

import (
	"bytes"
	"regexp"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/weir-ratelimit/weir/internal/descriptors"
)

// readDefaults reads the documents of the file that have defaults. All files' defaults are read before all rules. It
// ignores an error of the file's syntax, which read reports.
func (r *reader) readDefaults() {
	roots, _ := r.parse(r.file.Data)
	roots = slices.DeleteFunc(roots, isNull)
	if r.Lenient() && len(roots) > 1 { // as read does
		roots = roots[:1]
	}
	for _, root := range roots {
		if hasDefaults(root) {
			readFields(r, root, r.defaultsSchema(), &struct{}{})
		}
	}
}

// defaultsLine matches the beginning of a line with the field `defaults`.
var defaultsLine = regexp.MustCompile(`(?m)^[\x{feff} {"']*defaults`)

func mayHaveDefaults(f File) bool {
	return bytes.Contains(f.Data, []byte("defaults")) && defaultsLine.Match(f.Data)
}

// hasDefaults reports whether a document has defaults, and therefore no rules.
func hasDefaults(root *yaml.Node) bool {
	for i := 0; root.Kind == yaml.MappingNode && i < len(root.Content); i += 2 {
		if root.Content[i].Value == "defaults" {
			return true
		}
	}
	return false
}

func (r *reader) defaultsSchema() *schema[struct{}] {
	s := newSchema[struct{}]("a document with defaults")
	for _, name := range []string{"domain", "descriptors"} {
		s.read[name] = func(n *yaml.Node, _ *struct{}) {
			r.Errorf(r.at(n), "%s and defaults are in one document; write a line --- between the rules and the defaults", name)
		}
	}
	items := r.defaultSchema()
	some := shape{"type": "array", "items": ref("default")}
	s.field("defaults", some, func(n *yaml.Node, _ *struct{}) {
		if isNull(resolve(n)) {
			r.Errorf(r.at(n), "defaults is empty; write at least one item, or remove this document")
		}
		r.list(n, "defaults", func(item *yaml.Node) {
			d := &descriptors.Default{At: r.at(item)}
			before := r.Problems()
			if readFields(r, item, items, d); r.Problems() == before {
				r.AddDefault(d)
			}
		})
	})
	forPeople(r, s)
	return s
}

// defaultSchema has the fields of an item of `defaults`.
func (r *reader) defaultSchema() *schema[descriptors.Default] {
	s := newSchema[descriptors.Default]("an item of defaults")
	limits := r.forSchema()
	s.field("for", ref("for"), func(n *yaml.Node, d *descriptors.Default) { readFields(r, n, limits, d) })
	s.must, s.about = "rate_limit", "the fields for limits that lack them, or {} for none"
	noRate := without("each limit has its own", "name", "replaces", "unlimited", "requests_per_unit", "unit",
		"unit_multiplier", "window", "scope")
	form := shape{"allOf": []shape{ref("limit"), noRate}}
	s.field("rate_limit", form, func(n *yaml.Node, d *descriptors.Default) {
		if isNull(resolve(n)) {
			r.Errorf(r.at(n), "rate_limit is empty; write rate_limit: %s", s.about)
			return
		}
		d.RateLimit = r.readRateLimit(n)
	})
	forPeople(r, s)
	return s
}

// forSchema has the fields of `for`.
func (r *reader) forSchema() *schema[descriptors.Default] {
	s := newSchema[descriptors.Default]("for")
	s.field("domain", textShape, func(n *yaml.Node, d *descriptors.Default) { d.Domain = r.text(n) })
	s.field("unit", unitShape, func(n *yaml.Node, d *descriptors.Default) { d.Unit = readName(r, n, parseUnit) })
	return s
}
