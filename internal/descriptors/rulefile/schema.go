package rulefile

import (
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/weir-ratelimit/weir/internal/words"
)

// schema is what one level of a rule file may say: its fields, and how each is read into a T.
type schema[T any] struct {
	what  string // as a message names the level: "a descriptor"
	read  map[string]func(n *yaml.Node, into *T)
	names []string // of the fields, as a message lists them
	must  string   // the field that must be given, and must not be empty
	about string   // what to write there

	extra func(name string, n *yaml.Node, into *T) // keeps an x-* field; nil: they are for other tools

	synonyms map[string]string          // fields that people write for one of these
	meant    func(name string, into *T) // notes the field that an unknown one seems to stand for; may be nil
}

func newSchema[T any](what string) *schema[T] {
	return &schema[T]{what: what, read: map[string]func(*yaml.Node, *T){}}
}

func (s *schema[T]) field(name string, read func(n *yaml.Node, into *T)) {
	s.read[name] = read
	s.names = append(s.names, name)
}

// required adds the text that the mapping must have.
func (s *schema[T]) required(r *reader, name, about string, of func(into *T) *string) {
	s.must, s.about = name, about
	s.field(name, func(n *yaml.Node, into *T) {
		text := of(into)
		if *text = r.text(n); *text == "" && resolve(n).Kind == yaml.ScalarNode {
			r.Errorf(r.at(n), "%s is empty; write %s: %s", name, name, about)
		}
	})
}

// readFields reads a mapping of that schema; it is false, and the reason reported, if the node is no mapping.
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
			r.Tolerate(r.at(key), "it means nothing",
				"%s is not a field of %s; %s", key.Value, s.what, r.hint(key.Value, "", s.names))
		case r.OnlyCounts():
			given = true
			r.Errorf(r.at(key), "") // it is only counted, and needs no hint
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

// shownField shows letters of other alphabets by their numbers: they look like those of a field, and are not.
func shownField(name string) string {
	if quoted := strconv.QuoteToASCII(words.Shorten(name)); quoted != strconv.Quote(words.Shorten(name)) {
		return quoted
	}
	return words.Shown(name)
}

// peerFields are the fields of envoyproxy/ratelimit's rule files, which it ignores at a level where they do not belong.
var peerFields = map[string]bool{
	"domain": true, "descriptors": true, "key": true, "value": true, "rate_limit": true, "unit": true,
	"requests_per_unit": true, "unlimited": true, "name": true, "replaces": true, "shadow_mode": true, "quota_mode": true,
	"detailed_metric": true, "value_to_metric": true, "share_threshold": true, "metadata": true,
}

// meantBy is the field that an unknown one seems to stand for, empty if there is none.
func (s *schema[T]) meantBy(name string) string {
	name = strings.ToLower(name)
	if meant := s.synonyms[name]; meant != "" {
		return meant
	}
	return words.Nearest(name, s.names)
}

// hint says what to write instead of an unknown field, which seems to stand for meant.
func (r *reader) hint(name, meant string, known []string) string {
	switch {
	case r.rateLimitFields.read[name] != nil:
		return "it belongs in rate_limit"
	case r.descriptorFields.read[name] != nil:
		return "it belongs in a descriptor, beside key"
	case r.documentFields.read[name] != nil:
		return "it belongs at the top of the file"
	case meant != "":
		return "did you mean " + meant + "?"
	}
	known = slices.DeleteFunc(slices.Clone(known), func(n string) bool { return n == "description" || n == "owner" })
	return "its fields are " + strings.Join(known, ", ")
}

// forPeople adds the fields that every level has and no request sees.
func forPeople[T any](r *reader, s *schema[T]) {
	for _, name := range []string{"description", "owner"} {
		s.field(name, func(n *yaml.Node, _ *T) { r.text(n) })
	}
}
