package rulefile

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/weir-ratelimit/weir/internal/words"
)

// Bounds that keep small files from expanding to large trees.
const (
	maxDepth       = 500       // maximum number of nested mappings and lists
	maxAliasVisits = 1_000_000 // maximum number of nodes of all files that are read through aliases
)

// enter calls read with the node, or with the node of its alias. If a bound is exceeded, it reports an error instead.
func (r *reader) enter(n *yaml.Node, read func(n *yaml.Node)) {
	from := n
	n = resolve(n)
	if n != from {
		r.aliases++
		defer func() { r.aliases-- }()
	}
	if r.aliases > 0 {
		r.grown.visits++
	}
	r.depth++
	defer func() { r.depth-- }()
	switch {
	case r.overflow:
	case r.grown.visits > maxAliasVisits:
		r.overflow = true
		r.Errorf(r.at(from), "aliases (*name) expand to more than %d values up to here, in all files; write the rules out",
			maxAliasVisits)
	case r.depth > maxDepth:
		r.overflow = true
		r.Errorf(r.at(from),
			"nested more than %d levels deep; use fewer levels of descriptors, and no alias that contains itself", maxDepth)
	default:
		read(n)
	}
}

// mapping calls each for every field of a mapping, including the fields that it merges with << and does not have
// itself. If the node is not a mapping, it reports an error and returns false.
func (r *reader) mapping(n *yaml.Node, what string, each func(key, value *yaml.Node)) (ok bool) {
	r.enter(n, func(n *yaml.Node) {
		if ok = n.Kind == yaml.MappingNode; !ok {
			r.Errorf(r.at(n), "%s must be fields with values (name: value), got %s", what, kind(n))
			return
		}
		r.fields(n, nil, each)
	})
	return ok
}

// fields reads a mapping, or a merged mapping. merged has the fields of the mappings that merge it, or is nil.
func (r *reader) fields(n *yaml.Node, merged map[string]bool, each func(key, value *yaml.Node)) {
	var merges []*yaml.Node
	own := make(map[string]*yaml.Node, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := resolve(n.Content[i]), n.Content[i+1]
		switch first := own[key.Value]; {
		case key.Kind != yaml.ScalarNode:
			r.Errorf(r.at(key), "a field's name must be a text, got %s", kind(key))
		case key.Tag == "!!merge":
			merges = append(merges, value)
		case merged[key.Value]:
		case first != nil:
			r.Tolerate(r.at(key), "the last one applies",
				"%s is already given at %s; remove one of the two", words.Shown(key.Value), r.at(first))
			if r.Lenient() {
				each(key, value)
			}
		default:
			own[key.Value] = key
			each(key, value)
		}
	}
	if merged == nil && len(merges) > 0 {
		merged = map[string]bool{}
	}
	if merged != nil {
		for name := range own {
			merged[name] = true
		}
	}
	for _, m := range merges {
		r.merge(m, merged, each)
	}
}

// merge reads the fields of a << value: a mapping, or a list of mappings, of which the first that has a field counts.
func (r *reader) merge(n *yaml.Node, merged map[string]bool, each func(key, value *yaml.Node)) {
	r.enter(n, func(n *yaml.Node) {
		switch n.Kind {
		case yaml.MappingNode:
			r.fields(n, merged, each)
		case yaml.SequenceNode:
			for _, item := range n.Content {
				r.merge(item, merged, each)
			}
		default:
			r.Errorf(r.at(n), "<< merges fields (<<: *name), got %s", kind(n))
		}
	})
}

// list calls each for every item of a list. An empty node is an empty list.
func (r *reader) list(n *yaml.Node, what string, each func(item *yaml.Node)) {
	r.enter(n, func(n *yaml.Node) {
		switch {
		case isNull(n):
		case n.Kind != yaml.SequenceNode:
			r.Errorf(r.at(n), "%s must be a list (lines that start with -), got %s", what, kind(n))
		default:
			for _, item := range n.Content {
				each(item)
			}
		}
	})
}

// scalar calls read with a single value. It ignores an empty node, as if the field were left out.
func (r *reader) scalar(n *yaml.Node, want string, read func(n *yaml.Node)) {
	r.enter(n, func(n *yaml.Node) {
		switch {
		case n.Kind != yaml.ScalarNode:
			r.Errorf(r.at(n), "%s must be %s, got %s", r.field, want, kind(n))
		case !isNull(n):
			read(n)
		}
	})
}

// text reads a scalar as it is written: 8080, true and 1.0 are texts, too. It decodes a text with the tag !!binary.
func (r *reader) text(n *yaml.Node) (text string) {
	r.scalar(n, "a text", func(n *yaml.Node) {
		if text = n.Value; n.Tag != tagBinary {
			return
		}
		if err := n.Decode(&text); err != nil || !utf8.ValidString(text) {
			r.Errorf(r.at(n), "%s is !!binary, but not base64 of UTF-8 text; write the text itself", r.field)
		}
	})
	return text
}

const tagBinary = "!!binary"

// boolean reads true or false, and yes, no, on and off of YAML 1.1, which envoyproxy/ratelimit accepts.
func (r *reader) boolean(n *yaml.Node) (yes bool) {
	r.scalar(n, "true or false", func(n *yaml.Node) {
		plain := n.Tag == "!!bool" || n.Tag == "!!str" && n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) == 0
		switch strings.ToLower(n.Value) {
		case "true", "yes", "on", "y":
			yes = true
		case "false", "no", "off", "n":
		default:
			plain = false
		}
		if !plain {
			r.Errorf(r.at(n), "%s must be true or false without quotes, got %s", r.field, kind(n))
		}
	})
	return yes
}

func resolve(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

// kind returns the description of a node for messages.
func kind(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "fields"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case isNull(n):
		return "nothing"
	case n.Tag == "!!str":
		return strconv.Quote(words.Shorten(n.Value))
	default:
		return words.Shorten(n.Value)
	}
}
