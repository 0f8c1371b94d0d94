package rulefile

import (
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// flow parses what has to be on this line: a text, [] or {}. Within these two, commas and brackets end a text.
func (s *plain) flow(within bool) (n *yaml.Node, ok bool) {
	if s.pos == s.end || s.depth > maxPlainDepth {
		return nil, false
	}
	s.depth++
	defer func() { s.depth-- }()
	switch s.text[s.pos] {
	case '{':
		n = s.node(yaml.MappingNode, "!!map")
		n.Style = yaml.FlowStyle
		return n, s.flowItems(n, '}')
	case '[':
		n = s.node(yaml.SequenceNode, "!!seq")
		n.Style = yaml.FlowStyle
		return n, s.flowItems(n, ']')
	case '\'':
		return s.quoted(yaml.SingleQuotedStyle, "'")
	case '"':
		return s.quoted(yaml.DoubleQuotedStyle, `"\`)
	default:
		return s.scalar(within)
	}
}

// flowItems parses what is within brackets, and the last one.
func (s *plain) flowItems(n *yaml.Node, closing byte) bool {
	s.pos++
	s.spaces()
	if s.pos < s.end && s.text[s.pos] == closing {
		s.pos++
		return true
	}
	for {
		item, ok := s.flow(true)
		if !ok {
			return false
		}
		if n.Kind == yaml.MappingNode {
			n.Content = append(n.Content, item)
			if !s.colon(item) {
				return false
			}
			s.spaces()
			if item, ok = s.flow(true); !ok {
				return false
			}
		}
		n.Content = append(n.Content, s.copied(item))
		s.spaces()
		if s.pos == s.end {
			return false
		}
		s.pos++
		switch s.text[s.pos-1] {
		case closing:
			return true
		case ',':
			s.spaces()
		default:
			return false
		}
	}
}

// quoted parses a text up to the quote that it began with. The other parser knows escapes.
func (s *plain) quoted(style yaml.Style, special string) (n *yaml.Node, ok bool) {
	n = s.node(yaml.ScalarNode, "!!str")
	n.Style = style
	rest := s.text[s.pos+1 : s.end]
	length := strings.IndexAny(rest, special)
	if length < 0 || rest[length] == '\\' {
		return nil, false
	}
	n.Value = rest[:length]
	s.pos += length + 2
	return n, s.pos == s.end || s.text[s.pos] != '\''
}

// scalar parses a text without quotes.
func (s *plain) scalar(within bool) (n *yaml.Node, ok bool) {
	if !s.startsText() {
		return nil, false
	}
	n = s.node(yaml.ScalarNode, "")
	last := s.pos // the text's end: spaces behind it do not count
	for i := s.pos; i < s.end; i++ {
		c := s.text[i]
		if c == ' ' {
			continue
		}
		isColon := c == ':' && (i+1 == s.end || s.text[i+1] == ' ')
		if c == '#' && i > last || isColon || within && (c == ',' || c == ']' || c == '}') {
			break
		}
		if within && (c == '?' || c == '[' || c == '{') {
			return nil, false
		}
		last = i + 1
	}
	n.Value = s.text[s.pos:last]
	n.Tag = tagOf(n)
	s.pos = last
	return n, n.Value != "<<"
}

// startsText reports whether a text without quotes may begin with what is here.
func (s *plain) startsText() bool {
	c := s.text[s.pos]
	if c == '-' {
		return s.pos+1 < s.end && isAlphanumeric(s.text[s.pos+1])
	}
	return c >= utf8.RuneSelf || isAlphanumeric(c) || strings.IndexByte("/_.$+^~(=<\\;", c) >= 0
}

func isAlphanumeric(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// tagOf is what the other parser takes a text without quotes for. It is asked for all but the most usual, for it takes
// its time.
func tagOf(n *yaml.Node) string {
	switch first := n.Value[0]; {
	case first == '/' || first == '_' || first >= 'a' && first <= 'z' && strings.IndexByte("tfn", first) < 0:
		return "!!str"
	case first >= '1' && first <= '9' && isSmallNumber(n.Value):
		return "!!int"
	default:
		return n.ShortTag()
	}
}

func isSmallNumber(text string) bool {
	for i := range len(text) {
		if text[i] < '0' || text[i] > '9' {
			return false
		}
	}
	return len(text) <= 18
}
