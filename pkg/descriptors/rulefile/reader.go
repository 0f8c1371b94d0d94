package rulefile

import (
	"bytes"
	"errors"
	"io"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weir-ratelimit/weir/internal/words"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
)

// reader reads one file. It reports problems to a Builder, and gives each descriptor to take, which must not keep it.
type reader struct {
	*descriptors.Builder

	file   File
	values map[string][]byte // files of values by name; nil: they are not read
	take   func(domain string, d *descriptors.Descriptor)

	documents int // that are read
	taken     int // items of the next document's descriptors, that are read and taken

	depth    int    // mappings and lists around the node that is read
	aliases  int    // around the node that is read
	visits   int    // nodes read through aliases
	overflow bool   // a bound was hit, and that is reported
	field    string // whose value is read, for messages

	documentFields   *schema[document]
	descriptorFields *schema[descriptors.Descriptor]
	rateLimitFields  *schema[rateLimit]
	replacesFields   *schema[descriptors.Text]

	descriptorPool pool[descriptors.Descriptor]
	limitPool      pool[rateLimit]
	namesPool      pool[names] // one for each mapping around what is read

	zones map[string]*time.Location // that the file names
}

// document is one YAML document: rules of one domain.
type document struct {
	domain      string
	listAt      descriptors.Position // of descriptors, without a file where they are not given
	descriptors []*descriptors.Descriptor
}

func newReader(f File, b *descriptors.Builder) *reader {
	r := &reader{Builder: b, file: f}
	r.documentFields = r.documentSchema()
	r.descriptorFields = r.descriptorSchema()
	r.rateLimitFields = r.rateLimitSchema()
	r.replacesFields = newSchema[descriptors.Text]("an item of replaces")
	r.replacesFields.required(r,
		"name", "the limit that this one replaces", func(t *descriptors.Text) *string { return &t.Text })
	return r
}

// read reads the file: by parsePlain as far as that goes, and what is left by the parser of all YAML.
func (r *reader) read() {
	switch {
	case !parsePlain(copied(r.file.Data, r.Rest), r):
		r.readYAML()
	case r.documents == 0:
		r.reportEmpty()
	}
}

// readYAML reads what is not read yet by the parser of all YAML.
func (r *reader) readYAML() {
	before := r.Problems()
	documents := 0
	for _, root := range r.parseYAML() {
		if isNull(root) {
			continue
		}
		if documents++; documents > r.documents {
			r.document(root)
		}
	}
	if documents == 0 && r.Problems() == before {
		r.reportEmpty()
	}
}

// reportEmpty refuses a file without documents, as envoyproxy/ratelimit does, and not only for its sake: a full disk,
// or a writer who has only just begun, leaves an empty file, which must not take all limits away.
func (r *reader) reportEmpty() {
	r.Errorf(r.start(), "this file is empty; write domain: and descriptors:, or remove the file")
}

// item reads one item of a document's descriptors, whose domain is known. With document, it makes the reader a visitor.
func (r *reader) item(domain string, n *yaml.Node) {
	r.taken++
	r.take(domain, r.readDescriptor(n))
	r.limitPool.used, r.descriptorPool.used = 0, 0
}

// document reads a document, but for the items that were read before.
func (r *reader) document(root *yaml.Node) {
	if r.documents > 0 && r.Lenient() && !hasField(root, "domain") {
		r.Tolerate(r.at(root), "it is not read", "this document has no domain; write domain: the domain that Envoy's rate "+
			"limit filter sends, or remove the document")
		r.documents++
		return
	}
	before := r.Problems()
	var d document
	if is := otherDocument(root); is != "" {
		r.Errorf(r.at(root), "this is %s, not a rule file; move it out of the rules' folder", is)
	} else {
		readFields(r, root, r.documentFields, &d)
	}
	if d.domain == "" || r.overflow {
		r.SkipsRules()
	}
	for _, child := range d.descriptors {
		if !r.overflow {
			child.Invalid = child.Invalid || d.domain == ""
			r.take(d.domain, child)
		}
	}
	if d.domain != "" && len(d.descriptors)+r.taken == 0 && r.Problems() == before {
		// A writer who has only just begun leaves such a file, as it leaves an empty one: it must not take all limits away.
		at := d.listAt
		if at.File == "" {
			at = r.at(root)
		}
		r.Tolerate(at, "nothing of it is limited",
			"domain %s has no rules here, so that nothing would be limited; write descriptors: with at least one rule "+
				"(- key: none limits nothing), or remove this part of the file", words.Shown(d.domain))
	}
	r.documents++
	r.taken = 0
	r.limitPool.used, r.descriptorPool.used = 0, 0
}

// hasField reports whether the node is a mapping that has the field itself.
func hasField(n *yaml.Node, name string) bool {
	n = resolve(n)
	for i := 0; n.Kind == yaml.MappingNode && i < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return true
		}
	}
	return false
}

// parseYAML returns the roots of the file's documents, by the parser of all YAML. Where the file is no YAML, they end
// with a problem.
func (r *reader) parseYAML() (roots []*yaml.Node) {
	defer func() {
		// The parser is known to panic on some inputs that no editor writes, and a rule file must not take
		// the process down.
		if recover() != nil {
			r.SkipsRules()
			r.Errorf(r.start(), "this is not valid YAML; check the file for stray bytes and special characters")
		}
	}()
	if at, char, ok := r.notUTF8(); ok {
		r.SkipsRules()
		r.Errorf(at,
			"this is not UTF-8 text, but perhaps Latin-1 or Windows-1252 (byte 0x%02x); save the file as UTF-8", char)
		return nil
	}
	roots, err := r.parseAll(r.file.Data)
	if err != nil {
		r.SkipsRules()
		r.reportSyntax(err)
	}
	return roots
}

// parseAll returns the roots of the documents before the first error.
func (r *reader) parseAll(data []byte) (roots []*yaml.Node, err error) {
	decoder := yaml.NewDecoder(restingReader{bytes.NewReader(data), r.Rest})
	for {
		var document yaml.Node
		err := decoder.Decode(&document)
		if errors.Is(err, io.EOF) {
			return roots, nil
		}
		if err != nil {
			return roots, err
		}
		roots = append(roots, document.Content...)
	}
}

// restingReader is read by a parser, a few hundred bytes at a time.
type restingReader struct {
	io.Reader

	rest func()
}

func (r restingReader) Read(p []byte) (int, error) {
	r.rest()
	return r.Reader.Read(p)
}

func (r *reader) start() descriptors.Position {
	return descriptors.Position{File: r.file.Name, Line: 1, Column: 1}
}

func (r *reader) at(n *yaml.Node) descriptors.Position {
	return descriptors.Position{File: r.file.Name, Line: n.Line, Column: n.Column}
}
