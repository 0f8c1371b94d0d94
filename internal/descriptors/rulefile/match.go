package rulefile

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/words"
)

// Bounds of values files.
const (
	maxValueBytes = 64 << 10 // of one value; a request's value has at most as many
	maxListed     = 1_000_000
	maxAllListed  = 2_000_000 // a file's values count for each rule that names the file
)

// addForms adds the fields of Match, of which a descriptor may have one.
func addForms(r *reader, s *schema[descriptors.Descriptor]) {
	for _, f := range []struct {
		form descriptors.Form
		of   shape
	}{
		{descriptors.FormValues, listShape(givenText, 1)},
		{descriptors.FormCIDR, listShape(givenText, 1)},
		{descriptors.FormFile, givenText},
		{descriptors.FormRegex, givenText},
	} {
		form := f.form
		s.field(string(form), f.of, func(n *yaml.Node, d *descriptors.Descriptor) {
			m := descriptors.Matcher{Form: form, Items: r.items(form, n), At: r.at(n)}
			if d.Match.Form != "" {
				r.Errorf(m.At, "%s and %s are both given; write two descriptors", d.Match.Form, form)
				return
			}
			if form == descriptors.FormFile && len(m.Items) > 0 {
				file := &m.Items[0]
				file.Text = filepath.Clean(file.Text) // so that a file has one name
				m.Listed = r.listed(file)
			}
			d.Match = m
			d.Invalid = d.Invalid || len(m.Items) == 0
		})
	}
}

// items reads a list of values or blocks, or one file name or regex.
func (r *reader) items(form descriptors.Form, n *yaml.Node) (all []descriptors.Text) {
	read := func(n *yaml.Node, isEmpty string) {
		r.field = string(form)
		if t := (descriptors.Text{Text: r.text(n), At: r.at(n)}); t.Text != "" {
			all = append(all, t)
		} else if resolve(n).Kind == yaml.ScalarNode {
			r.Errorf(t.At, isEmpty, form)
		}
	}
	if form == descriptors.FormFile || form == descriptors.FormRegex {
		read(n, "%s is empty; write one, or leave it out")
		return all
	}
	before := r.Problems()
	r.list(n, string(form), func(item *yaml.Node) { read(item, "an item of %s is empty; remove it") })
	if len(all) == 0 && r.Problems() == before {
		r.Errorf(r.at(n), "%s is empty; write at least one item, or leave it out", form)
	}
	return all
}

// valuesFileName returns the File.Name of the file that values_file names. The error says what to write instead.
func valuesFileName(ruleFile, name string) (string, error) {
	switch ext := filepath.Ext(name); {
	case !filepath.IsLocal(name):
		return "", fmt.Errorf("values_file: %s leads out of the rule file's directory; write a relative "+
			"path below this directory", words.Shown(name))
	case ext == ".yaml" || ext == ".yml":
		return "", fmt.Errorf("values_file: %s would be read as a rule file; give it another ending, such as .txt",
			words.Shown(name))
	}
	return filepath.Join(filepath.Dir(ruleFile), name), nil
}

// listed returns the values of a values file, with their positions in it.
func (r *reader) listed(file *descriptors.Text) []descriptors.Text {
	name, err := valuesFileName(r.file.Name, file.Text)
	if err != nil {
		r.Errorf(file.At, "%s", err)
		return nil
	}
	data, ok := r.values[name]
	if !ok {
		r.Errorf(file.At, "values_file: there is no file %s; create it, with one value per line", name)
		return nil
	}
	return r.lines(name, data)
}

// lines reads one value per line. It skips blank lines and lines that begin with #.
func (r *reader) lines(name string, data []byte) (all []descriptors.Text) {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	blank := true
	number := 0
	for line := range strings.Lines(string(data)) {
		number++
		if r.Rest() != nil {
			return nil
		}
		text := strings.TrimSpace(line)
		if blank = blank && text == ""; text == "" || text[0] == '#' {
			continue
		}
		at := descriptors.Position{File: name, Line: number, Column: 1}
		switch {
		case len(all) >= maxListed:
			r.Errorf(at, "a values file has at most %d values; split it among several rules", maxListed)
			return nil
		case r.grown.values >= maxAllListed:
			r.Errorf(at, "the values files of all rules have more than %d values up to here, and a file that several rules "+
				"name counts for each of them; name it in fewer rules", maxAllListed)
			return nil
		case len(text) > maxValueBytes:
			r.Errorf(at,
				"this value has %d bytes, more than the %d that a request may send; remove it", len(text), maxValueBytes)
		case !utf8.ValidString(text) || strings.ContainsFunc(text, isControl):
			r.Errorf(at, "this value is not UTF-8 text; write one value per line, as UTF-8")
		default:
			all = append(all, descriptors.Text{Text: text, At: at})
			r.grown.values++
		}
	}
	if blank {
		r.Errorf(descriptors.Position{File: name, Line: 1, Column: 1},
			"this values file is empty; write one value per line, or only a comment (#) if no value should match")
	}
	return all
}

func isControl(char rune) bool { return char < ' ' || char == 0x7f }
