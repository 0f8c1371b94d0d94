package rulefile

import (
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// maxPlainKey is below the 1,024 characters that YAML allows a key.
const maxPlainKey = 1000

// maxPlainDepth bounds mappings and lists inside one another; maxDepth is that of all files.
const maxPlainDepth = 100

// visitor takes what parsePlain reads.
type visitor interface {
	// item takes one item of a document's descriptors, a list by indentation behind the document's domain. The node is
	// used again afterwards.
	item(domain string, n *yaml.Node)
	// document takes a document that is not empty. The list whose items item took is empty in it. The node is used again
	// afterwards.
	document(root *yaml.Node)
}

// parsePlain parses the YAML that rule files are mostly written in, about ten times as fast as the parser of all
// YAML: mappings and lists by indentation, {} and [] on one line, and texts on one line, plain or quoted. It stops at
// whatever else there is (anchors, tags, texts of several lines, escapes, tabs, an empty value) and at whatever is
// wrong, and returns false. What the visitor has taken until then is right, and the same as the other parser makes of
// it, but for comments.
func parsePlain(text string, v visitor) (ok bool) {
	p := plain{text: text, visitor: v}
	for {
		root, ok := p.document()
		if !ok || root == nil {
			return ok
		}
		v.document(root)
	}
}

// plain is the state of parsePlain.
type plain struct {
	text string

	// The line that is read: it begins at start, and is indented by indent, -1 at the end of a document. Its text ends
	// before end, and pos is how far it is read.
	start, pos, end int
	indent          int
	ascii           bool
	line            int // from 1
	next            int // where the next line begins
	counted, count  int // up to where the line's characters are counted, and how many they are

	depth   int
	visitor visitor
	listed  bool   // visitor has taken items of this document
	domain  string // of this document, empty as long as it is not known
	nodes   pool[yaml.Node]
	values  arena // of values, which so do not keep all of the text in memory, as keys do
}

// copied is the data as a text, made without a long pause.
func copied(data []byte, rest func()) string {
	var text strings.Builder
	text.Grow(len(data))
	for chunk := range slices.Chunk(data, 64<<10) {
		rest()
		text.Write(chunk)
	}
	return text.String()
}

// document parses the next document that is not empty; its node is nil at the end of the text.
func (s *plain) document() (root *yaml.Node, ok bool) {
	s.nodes.used, s.listed, s.domain = 0, false, ""
	for s.indent = -1; s.indent < 0; {
		if !s.advance() {
			return nil, false
		}
		if s.indent < 0 && s.next == len(s.text) {
			return nil, true
		}
	}
	root, ok = s.mapping(nil)
	return root, ok && s.indent < 0
}

// advance goes to the next line that says something.
func (s *plain) advance() bool {
	for s.next < len(s.text) {
		if !s.readLine() {
			return false
		}
		s.pos = s.start
		s.spaces()
		if s.pos == s.end || s.text[s.pos] == '#' {
			continue
		}
		s.indent = s.pos - s.start
		if line := s.text[s.start:s.end]; s.indent == 0 && (strings.HasPrefix(line,
			"---") || strings.HasPrefix(line, "...")) {
			s.indent = -1
			return line == "---"
		}
		return true
	}
	s.indent = -1
	return true
}

// readLine finds the next line's end. It is false if the line has characters that only the other parser knows what to
// do with.
func (s *plain) readLine() bool {
	s.line++
	s.start, s.end = s.next, s.next
	s.ascii = true
	for s.end < len(s.text) && s.text[s.end] != '\n' {
		size := 1
		switch c := s.text[s.end]; {
		case c >= utf8.RuneSelf:
			s.ascii = false
			var char rune
			char, size = utf8.DecodeRuneInString(s.text[s.end:])
			isBreak := char == '\u2028' || char == '\u2029'
			if size == 1 || char < 0xa0 || isBreak || char == 0xfeff || char == 0xfffe || char == 0xffff {
				return false
			}
		case c < ' ' || c > '~':
			return false
		}
		s.end += size
	}
	s.next = min(s.end+1, len(s.text))
	return true
}

func (s *plain) spaces() {
	for s.pos < s.end && s.text[s.pos] == ' ' {
		s.pos++
	}
}

// atEnd reports whether only a comment may be left of the line.
func (s *plain) atEnd() bool {
	before := s.pos
	s.spaces()
	return s.pos == s.end || s.text[s.pos] == '#' && s.pos > before
}

// atItem reports whether an item of a list by indentation begins here.
func (s *plain) atItem() bool { return strings.HasPrefix(s.text[s.pos:s.end], "- ") }

// node is a new node here. It has no Content, but room for some that it had when it was used before.
func (s *plain) node(kind yaml.Kind, tag string) *yaml.Node {
	n := s.nodes.next()
	column := s.pos - s.start
	if !s.ascii {
		column = s.characters()
	}
	n.Kind, n.Style, n.Tag, n.Value, n.Content = kind, 0, tag, "", n.Content[:0] // all that is ever set
	n.Line, n.Column = s.line, column+1
	return n
}

// characters are those of the line before here. It counts on from where it was asked last, as a line may be long.
func (s *plain) characters() int {
	if s.counted < s.start || s.counted > s.pos {
		s.counted, s.count = s.start, 0
	}
	s.count += utf8.RuneCountInString(s.text[s.counted:s.pos])
	s.counted = s.pos
	return s.count
}

// mapping parses a mapping that begins here, or with the key behind which this is.
func (s *plain) mapping(key *yaml.Node) (n *yaml.Node, ok bool) {
	root := s.depth == 0
	if s.depth++; s.depth > maxPlainDepth {
		return nil, false
	}
	defer func() { s.depth-- }()
	n = s.node(yaml.MappingNode, "!!map")
	if key != nil {
		n.Column = key.Column
	}
	column := n.Column - 1
	for {
		if key == nil {
			if key, ok = s.flow(false); !ok || !s.colon(key) {
				return nil, false
			}
		}
		isRules := root && key.Value == "descriptors"
		if isRules && s.listed {
			return nil, false // given twice, and the items of the first one are gone
		}
		value, ok := s.value(column, isRules && s.domain != "")
		if !ok {
			return nil, false
		}
		if root && key.Value == "domain" && s.domain == "" {
			s.domain = value.Value
		}
		n.Content = append(n.Content, key, value)
		key = nil
		if s.indent != column {
			return n, s.indent < column
		}
	}
}

// colon skips what follows a key.
func (s *plain) colon(key *yaml.Node) bool {
	if key.Kind != yaml.ScalarNode || s.pos == s.end || s.text[s.pos] != ':' || len(key.Value) > maxPlainKey {
		return false
	}
	s.pos++
	return s.pos == s.end || s.text[s.pos] == ' '
}

// value parses what follows key and colon, in this line or the next ones, and goes to the line behind it. If it is to
// be visited and a list by indentation, the visitor takes its items.
func (s *plain) value(column int, visited bool) (n *yaml.Node, ok bool) {
	if !s.atEnd() {
		if n, ok = s.flow(false); !ok || !s.atEnd() {
			return nil, false
		}
		return s.copied(n), s.advance() && s.indent <= column
	}
	if !s.advance() || s.indent < column {
		return nil, false
	}
	switch {
	case s.atItem():
		return s.list(s.indent, column, visited)
	case s.indent > column:
		return s.mapping(nil)
	default:
		return nil, false
	}
}

// list parses a list by indentation, which belongs to a key at a column. One that is not indented further than its
// key ends where another key follows.
func (s *plain) list(column, key int, visited bool) (n *yaml.Node, ok bool) {
	if s.depth++; s.depth > maxPlainDepth {
		return nil, false
	}
	defer func() { s.depth-- }()
	n = s.node(yaml.SequenceNode, "!!seq")
	used := s.nodes.used
	for s.indent == column && s.atItem() {
		s.pos++
		s.spaces()
		item, ok := s.inList(column)
		switch {
		case !ok || s.indent > column:
			return nil, false
		case !visited:
			n.Content = append(n.Content, item)
		case s.indent >= 0 && s.indent != key && (s.indent != column || !s.atItem()):
			return nil, false // nothing may follow an item there, so it may be another one than it seems
		default:
			s.listed = true
			s.visitor.item(s.domain, item)
			s.nodes.used = used
		}
	}
	return n, s.indent < column || column == key
}

// inList parses an item of a list, and goes to the line behind it.
func (s *plain) inList(column int) (n *yaml.Node, ok bool) {
	if s.pos == s.end {
		return nil, false
	}
	if n, ok = s.flow(false); !ok {
		return nil, false
	}
	if s.atEnd() {
		return s.copied(n), s.advance() && s.indent <= column
	}
	if !s.colon(n) {
		return nil, false
	}
	return s.mapping(n)
}

// copied makes a value's text outlive the file's.
func (s *plain) copied(n *yaml.Node) *yaml.Node {
	n.Value = s.values.copy(n.Value)
	return n
}
