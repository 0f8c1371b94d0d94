package rulefile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/words"
)

// reader reads one file. It gives problems and descriptors to a Builder.
type reader struct {
	*descriptors.Builder

	file   File
	values map[string][]byte // files of values by name

	documents int // number of documents that were read
	taken     int // number of items of the next document's descriptors that were read
	after     int // number of the file's lines before the text that is being read

	depth    int    // mappings and lists around the node that is read
	aliases  int    // around the node that is read
	overflow bool   // a bound was hit, and that is reported
	field    string // whose value is read, for messages

	documentFields   *schema[document]
	descriptorFields *schema[descriptors.Descriptor]
	rateLimitFields  *schema[rateLimit]
	replacesFields   *schema[descriptors.Text]

	zones map[string]*time.Location // that the file names
	grown *grown                    // of all files that are read together
}

// grown counts what files make of few bytes.
type grown struct {
	visits int // nodes read through aliases
	values int // read from values files: those of one file once for each rule that names it
}

// document is one YAML document: rules of one domain.
type document struct {
	domain      string
	listAt      descriptors.Position // of descriptors, without a file where they are not given
	descriptors []*descriptors.Descriptor
}

func newReader(f File, b *descriptors.Builder) *reader {
	r := &reader{Builder: b, file: f, grown: &grown{}}
	r.documentFields = r.documentSchema()
	r.descriptorFields = r.descriptorSchema()
	r.rateLimitFields = r.rateLimitSchema()
	r.replacesFields = newSchema[descriptors.Text]("an item of replaces")
	r.replacesFields.required(r,
		"name", "the limit that this one replaces", func(t *descriptors.Text) *string { return &t.Text })
	return r
}

// read reads the file: item by item if its list of descriptors ends it, which is how rule files are mostly written.
func (r *reader) read() {
	if at, char, ok := r.notUTF8(); ok {
		r.SkipsRules()
		r.Errorf(at,
			"this is not UTF-8 text, but perhaps Latin-1 or Windows-1252 (byte 0x%02x); save the file as UTF-8", char)
		return
	}
	if r.readItems() {
		return
	}
	r.depth, r.after = 0, 0
	roots, err := r.parse(r.file.Data)
	roots = slices.DeleteFunc(roots, isNull)
	if r.Lenient() && len(roots) > 0 && (len(roots) > 1 || err != nil) { // the first document is well
		r.Tolerate(r.at(roots[len(roots)-1]), "only the first one is read", "this is not the only document of the file; "+
			"write a file for each, so that envoyproxy/ratelimit reads all of them")
		roots, err = roots[:1], nil
	}
	if err != nil {
		r.SkipsRules()
	}
	switch {
	case errors.Is(err, errPanic), errors.Is(err, errTooLarge):
		r.Errorf(r.start(), "%s", err)
	case err != nil:
		r.reportSyntax(err)
	}
	for _, root := range roots {
		r.document(root)
	}
	if r.documents == 0 && err == nil {
		r.reportEmpty()
	}
}

// reportEmpty refuses a file without documents, as envoyproxy/ratelimit does, and not only for its sake: a full disk,
// or a writer who has only just begun, leaves an empty file, which must not take all limits away.
func (r *reader) reportEmpty() {
	r.Errorf(r.start(), "this file is empty; write domain: and descriptors:, or remove the file")
}

// document reads a document, without the items that were read before.
func (r *reader) document(root *yaml.Node) {
	before := r.Problems()
	var d document
	readFields(r, root, r.documentFields, &d)
	if d.domain == "" || r.overflow {
		r.SkipsRules()
	}
	for _, child := range d.descriptors {
		if !r.overflow {
			child.Invalid = child.Invalid || d.domain == ""
			r.Add(d.domain, child)
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
}

// errPanic replaces a panic of the YAML parser, which is known to panic on some inputs that no editor writes.
var errPanic = errors.New("this is not valid YAML; check the file for stray bytes and special characters")

// maxNodes bounds what is parsed at once: its nodes take some 600 bytes each. Below mayHaveMany bytes nothing has more.
const (
	maxNodes    = 1_500_000
	mayHaveMany = 1 << 20
)

var errTooLarge = fmt.Errorf("more than %d fields and values would have to be read at once; end the file with "+
	"descriptors: as a list that has - in front of each item, which is read item by item, or write several files, or a "+
	"values_file", maxNodes)

// mostNodes is how many nodes the text may have, about: each has one of these characters before or behind it.
func mostNodes(data []byte) (n int) {
	for line := range bytes.Lines(data) {
		if text := bytes.TrimLeft(line, " "); text[0] == '#' {
			continue
		}
		n++
		for _, sign := range []string{",", ":", "[", "{"} {
			n += bytes.Count(line, []byte(sign))
		}
	}
	return n
}

// parse returns the roots of the documents before the first error.
func (r *reader) parse(data []byte) (roots []*yaml.Node, err error) {
	if len(data) > mayHaveMany && mostNodes(data) > maxNodes {
		return nil, errTooLarge
	}
	defer func() {
		if recover() != nil {
			roots, err = nil, errPanic
		}
	}()
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

// restingReader pauses a load before each read: of an item, or of a few hundred bytes of a large one.
type restingReader struct {
	io.Reader

	rest func() error
}

func (r restingReader) Read(p []byte) (int, error) {
	if err := r.rest(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}

func (r *reader) start() descriptors.Position {
	return descriptors.Position{File: r.file.Name, Line: 1, Column: 1}
}

func (r *reader) at(n *yaml.Node) descriptors.Position {
	return descriptors.Position{File: r.file.Name, Line: r.after + n.Line, Column: n.Column}
}
