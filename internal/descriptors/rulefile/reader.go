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

// reader reads one file. It passes errors and descriptors to a Builder.
type reader struct {
	*descriptors.Builder

	file   File
	values map[string][]byte // values files by name

	documents int // number of documents read
	taken     int // number of items of the next document's descriptors that were read already
	after     int // number of lines of the file before the text that is being parsed

	depth    int    // number of mappings and lists around the current node
	aliases  int    // number of aliases around the current node
	overflow bool   // a bound was exceeded, and reported
	field    string // name of the current field, for messages

	documentFields   *schema[document]
	descriptorFields *schema[descriptors.Descriptor]
	rateLimitFields  *schema[rateLimit]
	replacesFields   *schema[descriptors.Text]

	reservationFields *schema[descriptors.Reservation]
	responseFields    *schema[descriptors.Response]

	zones map[string]*time.Location // time zones that the file names
	grown *grown                    // shared by all files that are read together
}

// grown counts what few bytes of the files expand to.
type grown struct {
	visits int // nodes read through aliases
	values int // values read from values files; each rule that names a file counts its values
}

// document is one YAML document, with rules of one domain.
type document struct {
	domain      string
	listAt      descriptors.Position // position of descriptors; File is empty if they are not given
	descriptors []*descriptors.Descriptor
}

func newReader(f File, b *descriptors.Builder) *reader {
	r := &reader{Builder: b, file: f, grown: &grown{}}
	r.documentFields = r.documentSchema()
	r.descriptorFields = r.descriptorSchema()
	r.rateLimitFields = r.rateLimitSchema()
	r.reservationFields = r.reservationSchema()
	r.responseFields = r.responseSchema()
	r.replacesFields = newSchema[descriptors.Text]("an item of replaces")
	r.replacesFields.required(r,
		"name", "the limit that this one replaces", func(t *descriptors.Text) *string { return &t.Text })
	return r
}

// read reads the file, item by item if its list of descriptors comes last, as in most rule files.
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
	if r.Lenient() && len(roots) > 0 && (len(roots) > 1 || err != nil) { // the first document is valid
		r.Tolerate(r.at(roots[len(roots)-1]), "only the first one is read", "this file has several documents; "+
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
	// A full disk or an unfinished write leaves an empty file, which must not remove all limits.
	if r.documents == 0 && err == nil {
		r.Errorf(r.start(), "this file is empty; write domain: and descriptors:, or remove the file")
	}
}

// document reads a document, except the items that were read already.
func (r *reader) document(root *yaml.Node) {
	if hasDefaults(root) && mayHaveDefaults(r.file) { // readDefaults has read them
		r.documents++
		return
	}
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
		// A half-written file looks like this, too, and must not remove all limits.
		at := d.listAt
		if at.File == "" {
			at = r.at(root)
		}
		r.Tolerate(at, "no request of this domain is limited",
			"domain %s has no rules here, so that it would limit nothing; write descriptors: with at least one rule "+
				"(- key: none limits nothing), or remove this document of the file", words.Shown(d.domain))
	}
	r.documents++
	r.taken = 0
}

// errPanic replaces a panic of the YAML parser, which panics on some unusual inputs.
var errPanic = errors.New("this is not valid YAML; check the file for stray bytes and special characters")

// maxNodes bounds the nodes of one parse, of about 600 bytes each. Texts up to mayHaveMany bytes cannot have more.
const (
	maxNodes    = 1_500_000
	mayHaveMany = 1 << 20
)

var errTooLarge = fmt.Errorf("more than %d fields and values would have to be read at once; write descriptors: "+
	"at the end of the file, as a list with - before each item, which is read item by item, or write several files, or a "+
	"values_file", maxNodes)

// mostNodes returns an upper estimate of the nodes of the text, by the characters that separate nodes.
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

// restingReader pauses a load before each read of an item, or of a few hundred bytes of a large item.
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
