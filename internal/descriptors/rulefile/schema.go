package rulefile

import (
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/weir-ratelimit/weir/internal/words"
)

// schema has the fields of one level of a rule file, and how each is read into a T.
type schema[T any] struct {
	what   string // name of the level in messages: "a descriptor"
	read   map[string]func(n *yaml.Node, into *T)
	names  []string // names of the fields, in the order of messages
	shapes []shape  // for JSONSchema, in the order of names
	must   string   // name of the required field, which must not be empty
	about  string   // what to write in the required field

	extra func(name string, n *yaml.Node, into *T) // reads an x-* field; nil: these fields are ignored

	synonyms map[string]string          // fields by names that people write instead
	meant    func(name string, into *T) // records the field that an unknown field seems to mean; may be nil
}

func newSchema[T any](what string) *schema[T] {
	return &schema[T]{what: what, read: map[string]func(*yaml.Node, *T){}}
}

// field adds a field. read and form must accept the same values, as far as form can express that.
func (s *schema[T]) field(name string, form shape, read func(n *yaml.Node, into *T)) {
	s.read[name] = read
	s.names, s.shapes = append(s.names, name), append(s.shapes, form)
}

// required adds the required field, a text.
func (s *schema[T]) required(r *reader, name, about string, of func(into *T) *string) {
	s.must, s.about = name, about
	s.field(name, textShape, func(n *yaml.Node, into *T) {
		text := of(into)
		if *text = r.text(n); *text == "" && resolve(n).Kind == yaml.ScalarNode {
			r.Errorf(r.at(n), "%s is empty; write %s: %s", name, name, about)
		}
	})
}

// readFields reads a mapping with that schema. If the node is not a mapping, it reports an error and returns false.
func readFields[T any](r *reader, n *yaml.Node, s *schema[T], into *T) bool {
	given := s.must == ""
	isMapping := r.mapping(n, s.what, func(key, value *yaml.Node) {
		given = given || key.Value == s.must
		switch read := s.read[key.Value]; {
		case read != nil:
			r.field = key.Value
			read(value, into)
		case strings.HasPrefix(key.Value, "x-"):
			if s.extra != nil {
				r.field = key.Value
				s.extra(key.Value, value, into)
			}
		case r.Lenient() && peerFields[key.Value]:
			r.Tolerate(r.at(key), "it has no effect",
				"%s is not a field of %s; %s", key.Value, s.what, r.hint(key.Value, "", s.names))
		case r.OnlyCounts():
			given = true
			r.Errorf(r.at(key), "") // only counted, so it needs no text
		default:
			meant := s.meantBy(key.Value)
			given = given || meant != "" && meant == s.must
			if s.meant != nil && meant != "" {
				s.meant(meant, into)
			}
			r.Errorf(r.at(key),
				"%s is not a field of %s; %s", shownField(key.Value), s.what, r.hint(key.Value, meant, s.names))
		}
	})
	if isMapping && !given {
		r.Errorf(r.at(n), "%s is missing; write %s: %s", s.must, s.must, s.about)
	}
	return isMapping
}

// shownField returns the name with letters of other alphabets as numbers, because they may look like those of a field.
func shownField(name string) string {
	if quoted := strconv.QuoteToASCII(words.Shorten(name)); quoted != strconv.Quote(words.Shorten(name)) {
		return quoted
	}
	return words.Shown(name)
}

// peerFields are the fields of envoyproxy/ratelimit's rule files, which ignores fields at a wrong level.
var peerFields = map[string]bool{
	"domain": true, "descriptors": true, "key": true, "value": true, "rate_limit": true, "unit": true,
	"requests_per_unit": true, "unlimited": true, "name": true, "replaces": true, "shadow_mode": true, "quota_mode": true,
	"detailed_metric": true, "value_to_metric": true, "share_threshold": true, "metadata": true,
}

// meantBy returns the field that an unknown field seems to mean, or "".
func (s *schema[T]) meantBy(name string) string {
	name = strings.ToLower(name)
	if meant := s.synonyms[name]; meant != "" {
		return meant
	}
	return words.Nearest(name, s.names)
}

// hint says what to write instead of an unknown field, which seems to mean the field `meant`.
func (r *reader) hint(name, meant string, known []string) string {
	switch {
	case name == "tests":
		return "keep test files outside the directory of the rules"
	case r.rateLimitFields.read[name] != nil:
		return "it belongs in rate_limit"
	case r.descriptorFields.read[name] != nil:
		return "it belongs in a descriptor, beside key"
	case r.documentFields.read[name] != nil:
		return "it belongs at the top of the file"
	case r.reservationFields.read[name] != nil:
		return "it belongs in reservation"
	case meant != "":
		return "did you mean " + meant + "?"
	}
	known = slices.DeleteFunc(slices.Clone(known), func(n string) bool { return n == "description" || n == "owner" })
	return "its fields are " + strings.Join(known, ", ")
}

// forPeople adds the fields that every level has and matching ignores.
func forPeople[T any](r *reader, s *schema[T]) {
	for _, name := range []string{"description", "owner"} {
		s.field(name, textShape, func(n *yaml.Node, _ *T) { r.text(n) })
	}
}
