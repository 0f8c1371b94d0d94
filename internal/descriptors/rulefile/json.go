package rulefile

import (
	"math"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/weir-ratelimit/weir/internal/words"
)

// metadata reads a mapping with values as encoding/json decodes them. It returns nil if the mapping is empty.
func (r *reader) metadata(n *yaml.Node) map[string]any {
	if isNull(resolve(n)) {
		return nil
	}
	if m := r.object(n); len(m) > 0 {
		return m
	}
	return nil
}

func (r *reader) object(n *yaml.Node) map[string]any {
	m := map[string]any{}
	r.mapping(n, r.field, func(key, value *yaml.Node) { m[key.Value] = r.value(value) })
	return m
}

func (r *reader) value(n *yaml.Node) (v any) {
	r.enter(n, func(n *yaml.Node) {
		switch n.Kind {
		case yaml.MappingNode:
			v = r.object(n)
		case yaml.SequenceNode:
			items := make([]any, 0, len(n.Content))
			for _, item := range n.Content {
				items = append(items, r.value(item))
			}
			v = items
		default:
			var ok bool
			if v, ok = jsonValue(n); !ok {
				r.Errorf(r.at(n), "%s must be a value that JSON has, got the number %s; quote it to make it a text", r.field,
					words.Shorten(n.Value))
			}
		}
	})
	return v
}

// jsonValue returns the value that encoding/json decodes from a scalar: nil, a boolean, a number, or else a text. ok is
// false for a number that JSON cannot express.
func jsonValue(n *yaml.Node) (v any, ok bool) {
	var f float64
	switch n.Tag {
	case "!!null":
		return nil, true
	case "!!bool":
		return strings.EqualFold(n.Value, "true"), true
	case "!!int":
		if n.Decode(&f) == nil {
			return f, true
		}
	case "!!float":
		ok := n.Decode(&f) == nil && !math.IsInf(f, 0) && !math.IsNaN(f)
		return f, ok
	}
	return n.Value, true
}
