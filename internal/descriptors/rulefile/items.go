package rulefile

import (
	"bytes"

	"go.yaml.in/yaml/v3"
)

// chunkSize is the number of bytes of a list of descriptors that are decoded at once, unless one item is larger.
var chunkSize = 8 << 10 // tests change it

// chunk is a part of a file. after is the number of lines before it.
type chunk struct {
	data  []byte
	after int
}

// splitItems cuts a file between items of its list of descriptors, because the nodes of 100,000 rules take 150 MB. The
// first chunk ends before the first item. It returns nil if the file has several documents, or if anything but comments
// follows the list. A cut within a text or brackets does no harm, because the chunk before it is then invalid YAML.
func splitItems(data []byte) (chunks []chunk) {
	if hasRareBreaks(data) {
		return nil
	}
	const unknown = -1
	isListed, indent := false, unknown
	var from, after, at, number int
	for line := range bytes.Lines(data) {
		text := bytes.TrimRight(line, " \r\n")
		content := bytes.TrimLeft(text, " ")
		column := len(text) - len(content)
		isItem := bytes.HasPrefix(content, []byte("- ")) || string(content) == "-"
		switch {
		case len(content) == 0 || content[0] == '#':
		case !isListed:
			key, _, _ := bytes.Cut(text, []byte(" #"))
			isListed = string(bytes.TrimRight(key, " ")) == "descriptors:"
		case indent == unknown && !isItem, column < indent, column == indent && !isItem:
			return nil
		case indent == unknown, column == indent && at-from >= chunkSize:
			indent = column
			chunks = append(chunks, chunk{data[from:at], after})
			from, after = at, number
		}
		at += len(line)
		number++
	}
	if indent == unknown {
		return nil
	}
	return append(chunks, chunk{data[from:], after})
}

// hasRareBreaks reports whether the data has line breaks of YAML that bytes.Lines does not recognize.
func hasRareBreaks(data []byte) bool {
	for _, rare := range []string{"\u0085", "\u2028", "\u2029"} {
		if bytes.Contains(data, []byte(rare)) {
			return true
		}
	}
	return bytes.Count(data, []byte("\r")) != bytes.Count(data, []byte("\r\n"))
}

// readItems reads the file item by item. If an item cannot be read alone, it returns false after reading r.taken items.
func (r *reader) readItems() bool {
	chunks := splitItems(r.file.Data)
	if chunks == nil {
		return false
	}
	root, domain := r.head(chunks[0].data)
	if domain == "" {
		return false
	}
	const around = 2 // the document's mapping and the list
	r.depth += around
	for _, c := range chunks[1:] {
		roots, err := r.parse(c.data)
		if err != nil || len(roots) != 1 || roots[0].Kind != yaml.SequenceNode {
			return false
		}
		r.after = c.after
		for _, n := range roots[0].Content {
			r.taken++
			if d := r.readDescriptor(n); !r.overflow {
				r.Add(domain, d)
			}
		}
	}
	r.depth -= around
	r.after = 0
	r.document(root)
	return true
}

// head returns the mapping before the list of descriptors, and its domain. The domain is empty unless the mapping has
// exactly one domain and one list.
func (r *reader) head(data []byte) (root *yaml.Node, domain string) {
	roots, err := r.parse(data)
	if err != nil || len(roots) != 1 || roots[0].Kind != yaml.MappingNode {
		return nil, ""
	}
	root = roots[0]
	lists := 0
	for i := 0; i < len(root.Content); i += 2 {
		switch value := root.Content[i+1]; root.Content[i].Value {
		case "descriptors":
			lists++
		case "defaults":
			return nil, ""
		case "domain":
			if domain != "" || value.Kind != yaml.ScalarNode || isNull(value) || value.Tag == tagBinary {
				return nil, ""
			}
			domain = value.Value
		}
	}
	if last := root.Content[len(root.Content)-1]; lists != 1 || !isNull(last) {
		return nil, ""
	}
	return root, domain
}
