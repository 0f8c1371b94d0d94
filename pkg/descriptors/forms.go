package descriptors

import (
	"bytes"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Bounds of what a rule matches by.
const (
	maxValueBytes = 64 << 10 // of a listed value: what a request's value may have at most
	maxListed     = 1_000_000
	maxShownItems = 3
	maxSharedText = 64 // bytes of a key that stand for a shared matcher
)

// form is a way to match a value other than `value`, by the field's name.
type form string

const (
	noForm     form = ""
	formValues form = "values"
	formFile   form = "values_file"
	formCIDR   form = "cidr"
	formRegex  form = "regex"
)

// matcher is what a descriptor says beside `value` about the values that it matches.
type matcher struct {
	form  form
	at    position
	items []place // values or blocks as they are written; else the one file or regex; empty if wrong
}

// addForms adds the fields of a descriptor that say what it matches, of which there may be one.
func addForms(r *reader, s *shape[descriptor]) {
	add := func(f form, read func(n *yaml.Node) []place) {
		s.field(string(f), func(n *yaml.Node, d *descriptor) {
			m := matcher{form: f, at: r.at(n), items: read(n)}
			if d.match.form != noForm {
				r.add(m.at, "%s and %s are both given; write two descriptors", d.match.form, f)
				return
			}
			d.match = m
		})
	}
	items := func(name string, n *yaml.Node) (all []place) {
		before := r.errors()
		r.list(n, name, func(item *yaml.Node) {
			r.field = name
			if p := (place{r.text(item), r.at(item)}); p.name != "" {
				all = append(all, p)
			} else if resolve(item).Kind == yaml.ScalarNode {
				r.add(p.at, "an item of %s is empty; remove it", name)
			}
		})
		if len(all) == 0 && r.errors() == before {
			r.add(r.at(n), "%s is empty; write at least one item, or leave it out", name)
		}
		return all
	}
	one := func(name string, n *yaml.Node) []place {
		p := place{r.text(n), r.at(n)}
		if p.name != "" {
			return []place{p}
		}
		if resolve(n).Kind == yaml.ScalarNode {
			r.add(p.at, "%s is empty; write one, or leave it out", name)
		}
		return nil
	}
	add(formValues, func(n *yaml.Node) []place { return items("values", n) })
	add(formCIDR, func(n *yaml.Node) []place { return items("cidr", n) })
	add(formFile, func(n *yaml.Node) []place {
		files := one("values_file", n)
		for i := range files {
			files[i].name = filepath.Clean(files[i].name) // one file has one name
		}
		return files
	})
	add(formRegex, func(n *yaml.Node) []place { return one("regex", n) })
}

// text is the matcher as a rule's path shows it. Two rules of one level differ in it, as no two of them may have the
// same first item.
func (m *matcher) text() string {
	names := make([]string, 0, maxShownItems+1)
	for _, p := range m.items[:min(len(m.items), maxShownItems)] {
		if m.form == formValues {
			names = append(names, pathItem(p.name))
			continue
		}
		names = append(names, p.name)
	}
	if more := len(m.items) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return " " + string(m.form) + " " + strings.Join(names, ", ")
}

// shared stands for the matcher in the key of a counter that all of its values share: whatever order its items have.
// It begins with *#, which no pattern, no value and no hash does.
func (m *matcher) shared() string {
	items := make([]string, len(m.items))
	for i, p := range m.items {
		items[i] = string(appendEscaped(nil, p.name, &inItem))
	}
	slices.Sort(items)
	text := []byte("*#" + string(m.form) + ":" + strings.Join(items, ","))
	if len(text) > maxSharedText {
		start := len("*#") + len(m.form) + len(":")
		text = hashFrom(text, start, start)
	}
	return string(text)
}

// prefix reads a block of `cidr`.
func (c *compiler) prefix(p place) (prefix netip.Prefix, ok bool) {
	prefix, err := netip.ParsePrefix(p.name)
	if addr, alone := netip.ParseAddr(p.name); alone == nil && addr.Zone() == "" {
		prefix, err = netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	switch {
	case err != nil:
		c.add(p.at, "cidr: %s is no block of addresses; write one such as 10.0.0.0/8 or 2001:db8::/32, without a port or zone", shown(p.name))
	case prefix.Addr().Is4In6():
		c.add(p.at, "cidr: %s is an IPv4 address written as IPv6; write the IPv4 block, which matches both", p.name)
	case prefix != prefix.Masked():
		c.add(p.at, "cidr: %s has bits beyond its length; write %s", p.name, prefix.Masked())
	default:
		return prefix, true
	}
	return prefix, false
}

// valuesFileName is the file that values_file names, as File.Name has it. The error says what to write instead.
func valuesFileName(ruleFile, name string) (string, error) {
	switch ext := filepath.Ext(name); {
	case !filepath.IsLocal(name):
		return "", fmt.Errorf("values_file: %s leads out of the rule file's directory; write a path below it, relative to it", shown(name))
	case ext == ".yaml" || ext == ".yml":
		return "", fmt.Errorf("values_file: %s would be read as a rule file; give it another ending, such as .txt", shown(name))
	}
	return filepath.Join(filepath.Dir(ruleFile), name), nil
}

// Includes are the names of the files that a rule file refers to with values_file: Compile wants them among its
// files, with Included. Whatever is wrong is Compile's to say.
func Includes(f File) (names []string) { return IncludesFor(Process{}, f) }

// IncludesFor is Includes for a process that may want to rest.
func IncludesFor(process Process, f File) (names []string) {
	if !MayInclude(f) {
		return nil
	}
	var collect func(d *descriptor)
	collect = func(d *descriptor) {
		if d.match.form == formFile && len(d.match.items) > 0 {
			if name, err := valuesFileName(f.Name, d.match.items[0].name); err == nil {
				names = append(names, name)
			}
		}
		for _, child := range d.children {
			collect(child)
		}
	}
	readFile(f, &problems{}, &process, func(string) func(*descriptor) { return collect })
	return names
}

// MayInclude is false if Includes has nothing to look for.
func MayInclude(f File) bool { return !f.Included && bytes.Contains(f.Data, []byte(formFile)) }

// listed are the values of a values_file, with their places in it.
func (c *compiler) listed(m *matcher) []place {
	p := m.items[0]
	name, err := valuesFileName(p.at.file, p.name)
	if err != nil {
		c.add(p.at, "%s", err)
		return nil
	}
	data, ok := c.included[name]
	if !ok {
		c.add(p.at, "values_file: there is no file %s; write it, with one value a line", name)
		return nil
	}
	return c.lines(name, data)
}

// lines reads one value a line. Blank lines, and those that begin with #, are left out.
func (c *compiler) lines(name string, data []byte) (all []place) {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	blank := true
	number := 0
	for line := range strings.Lines(string(data)) {
		c.process.rest()
		number++
		text := strings.TrimSpace(line)
		if blank = blank && text == ""; text == "" || text[0] == '#' {
			continue
		}
		at := position{name, number, 1}
		switch {
		case len(all) >= maxListed:
			c.add(at, "a values file has at most %d values; split it among several rules", maxListed)
			return nil
		case len(text) > maxValueBytes:
			c.add(at, "this value has %d bytes, more than the %d that a request may send; remove it", len(text), maxValueBytes)
		case !utf8.ValidString(text) || strings.ContainsFunc(text, isControl):
			c.add(at, "this value has bytes that are no text; write one value a line, as UTF-8")
		default:
			all = append(all, place{text, at})
		}
	}
	if blank {
		c.add(position{name, 1, 1}, "this values file is empty; write one value a line, or a comment (#) if there is to be none")
	}
	return all
}

func isControl(char rune) bool { return char < ' ' || char == 0x7f }
