package descriptors

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"go.yaml.in/yaml/v3"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Bounds that keep a small file from becoming a large tree.
const (
	maxDepth       = 200       // mappings and lists inside one another
	maxAliasVisits = 1_000_000 // nodes of one file that are read through aliases
)

// parse makes a file the roots of its documents. Where the file is no YAML, it ends with a problem.
func (r *reader) parse(f File) (roots []*yaml.Node) {
	defer func() {
		// The parser is known to panic on some inputs that no editor writes, and a rule file must not take
		// the process down.
		if recover() != nil {
			r.incomplete = true
			r.add(position{f.Name, 1, 1}, "this is not valid YAML; check the file for stray bytes and special characters")
		}
	}()
	if at, ok := notUTF8(f); ok {
		r.incomplete = true
		r.add(at, "this is not UTF-8 text, but perhaps Latin-1 or Windows-1252 (byte 0x%02x); save the file as UTF-8", f.Data[offsetOf(f.Data, at)])
		return nil
	}
	roots, err := r.parseAll(f.Data)
	if err != nil {
		r.incomplete = true
		r.add(r.explainSyntax(f, err))
	}
	return roots
}

// parseAll returns the roots of the documents before the first error.
func (r *reader) parseAll(data []byte) (roots []*yaml.Node, err error) {
	decoder := yaml.NewDecoder(restingReader{bytes.NewReader(data), r.process})
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

	process *Process
}

func (r restingReader) Read(p []byte) (int, error) {
	r.process.rest()
	return r.Reader.Read(p)
}

// reader reads the nodes of one file. It follows aliases, within bounds.
type reader struct {
	*problems
	process  *Process
	file     string
	depth    int
	aliases  int    // how many aliases lead here
	visits   int    // nodes read through aliases
	rules    int    // descriptors of this document, so far
	overflow bool   // a bound was hit, and said
	field    string // the field whose value is read, for messages

	documents   *shape[document]
	descriptors *shape[descriptor]
	rateLimits  *shape[rateLimit]
	replaces    *shape[place]

	descriptorPool pool[descriptor]
	limitPool      pool[rateLimit]
	namesPool      pool[names] // one for each mapping around what is read

	zones    map[string]*time.Location        // that the file names
	policies map[limiter.Params]*sharedPolicy // so far
}

func (r *reader) at(n *yaml.Node) position { return position{r.file, n.Line, n.Column} }

// enter calls read with the node, or with what it is an alias of, unless that hits a bound.
func (r *reader) enter(n *yaml.Node, read func(n *yaml.Node)) {
	from := n
	n = resolve(n)
	if n != from {
		r.aliases++
		defer func() { r.aliases-- }()
	}
	if r.aliases > 0 {
		r.visits++
	}
	r.depth++
	defer func() { r.depth-- }()
	switch {
	case r.overflow:
	case r.visits > maxAliasVisits:
		r.overflow = true
		r.add(r.at(from), "aliases (*name) expand to more than %d values here; write the rules out", maxAliasVisits)
	case r.depth > maxDepth:
		r.overflow = true
		r.add(r.at(from), "nested more than %d levels deep; use fewer levels of descriptors, and no alias of what contains it", maxDepth)
	default:
		read(n)
	}
}

// mapping calls each for every field of a mapping: those that it merges with << too, unless it has them itself.
// It is false, and the reason said, if the node is no mapping.
func (r *reader) mapping(n *yaml.Node, what string, each func(key, value *yaml.Node)) (ok bool) {
	r.enter(n, func(n *yaml.Node) {
		if ok = n.Kind == yaml.MappingNode; !ok {
			r.add(r.at(n), "%s must be fields with values (name: value), got %s", what, kind(n))
			return
		}
		seen := r.namesPool.next()
		*seen = names{keys: seen.keys[:0]}
		r.fields(n, seen, each)
		r.namesPool.used--
	})
	return ok
}

// fields is the part of mapping that merging repeats. Seen has the fields that were read so far.
func (r *reader) fields(n *yaml.Node, seen *names, each func(key, value *yaml.Node)) {
	var merges []*yaml.Node
	own := len(seen.keys)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := resolve(n.Content[i]), n.Content[i+1]
		switch first := seen.find(key.Value); {
		case key.Kind != yaml.ScalarNode:
			r.add(r.at(key), "a field's name must be a text, got %s", kind(key))
		case key.Tag == "!!merge":
			merges = append(merges, value)
		case first >= own:
			r.add(r.at(key), "%s is already given at %s; remove one of the two", shown(key.Value), r.at(seen.keys[first]))
		case first < 0:
			seen.add(key)
			each(key, value)
		}
	}
	for _, m := range merges {
		r.merge(m, seen, each)
	}
}

// merge reads the fields of a << value: a mapping, or a list of mappings of which the first one that has a
// field gives it.
func (r *reader) merge(n *yaml.Node, seen *names, each func(key, value *yaml.Node)) {
	r.enter(n, func(n *yaml.Node) {
		switch n.Kind {
		case yaml.MappingNode:
			r.fields(n, seen, each)
		case yaml.SequenceNode:
			for _, item := range n.Content {
				r.merge(item, seen, each)
			}
		default:
			r.add(r.at(n), "<< merges fields (<<: *name), got %s", kind(n))
		}
	})
}

// list calls each for every item of a list. Nothing is an empty list.
func (r *reader) list(n *yaml.Node, what string, each func(item *yaml.Node)) {
	r.enter(n, func(n *yaml.Node) {
		switch {
		case isNull(n):
		case n.Kind != yaml.SequenceNode:
			r.add(r.at(n), "%s must be a list (lines that start with -), got %s", what, kind(n))
		default:
			for _, item := range n.Content {
				each(item)
			}
		}
	})
}

// scalar calls read with a single value. Nothing reads nothing: the field is as good as left out.
func (r *reader) scalar(n *yaml.Node, want string, read func(n *yaml.Node)) {
	r.enter(n, func(n *yaml.Node) {
		switch {
		case n.Kind != yaml.ScalarNode:
			r.add(r.at(n), "%s must be %s, got %s", r.field, want, kind(n))
		case !isNull(n):
			read(n)
		}
	})
}

// text reads a scalar as it is written: 8080, true and 1.0 are texts too.
func (r *reader) text(n *yaml.Node) (text string) {
	r.scalar(n, "a text", func(n *yaml.Node) { text = n.Value })
	return text
}

// boolean reads true or false, and the yes, no, on and off of YAML 1.1, which envoyproxy/ratelimit reads.
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
			r.add(r.at(n), "%s must be true or false without quotes, got %s", r.field, kind(n))
		}
	})
	return yes
}

// integer reads a whole number between lo and hi; ok is false, and the reason said, if it is none.
func (r *reader) integer(n *yaml.Node, lo, hi int64) (v int64, ok bool) {
	r.scalar(n, "a whole number", func(n *yaml.Node) {
		// Base 0 reads 1_000, 0x10 and 0o17 as YAML does.
		parsed, err := strconv.ParseInt(n.Value, 0, 64)
		if n.Tag != "!!int" || err != nil || parsed < lo || parsed > hi {
			r.add(r.at(n), "%s must be a whole number between %d and %d, got %s%s", r.field, lo, hi, kind(n), numberHint(n, r.field, lo, hi))
			return
		}
		v, ok = parsed, true
		if n.Value[0] == '0' && isSmallNumber(n.Value) && decimal(n.Value) != strconv.FormatInt(parsed, 10) {
			r.warn(WarnOctal, r.at(n), "%s: %s is %d, as YAML takes a number that begins with 0 for an octal one; write %s or %d",
				r.field, n.Value, parsed, decimal(n.Value), parsed)
		}
	})
	return v, ok
}

// decimal is a number without the zeros that it begins with.
func decimal(text string) string { return cmp.Or(strings.TrimLeft(text, "0"), "0") }

// factors are what people write behind a number.
var factors = map[byte]int64{'k': 1_000, 'K': 1_000, 'm': 1_000_000, 'M': 1_000_000}

// numberHint says which whole number within the bounds was probably meant, empty if that is not known.
func numberHint(n *yaml.Node, field string, lo, hi int64) string {
	text := strings.TrimSpace(n.Value)
	within := func(v int64, err error) bool { return err == nil && v >= lo && v <= hi }
	quoted := n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0
	if v, err := strconv.ParseInt(text, 10, 64); within(v, err) && isSmallNumber(text) {
		if quoted {
			return "; remove the quotes"
		}
		return fmt.Sprintf("; write %d", v) // 089
	}
	if text == "-1" && field == "requests_per_unit" {
		return "; write unlimited: true for no limit"
	}
	if number, per, ok := strings.Cut(text, "/"); ok && field == "requests_per_unit" && isSmallNumber(number) && number != "" {
		if u := unitMeant(per); u != UnitUnknown {
			return fmt.Sprintf("; write requests_per_unit: %s and unit: %s", decimal(number), u)
		}
	}
	plain := strings.NewReplacer(",", "", "_", "", " ", "", "'", "").Replace(text)
	factor := int64(1)
	if end := len(plain) - 1; end > 0 && factors[plain[end]] > 0 {
		plain, factor = plain[:end], factors[plain[end]]
	}
	v, err := strconv.ParseFloat(plain, 64)
	if whole := int64(v) * factor; err == nil && v == math.Trunc(v) && within(whole, nil) && math.Abs(v) < 1e15 {
		return fmt.Sprintf("; write %d", whole)
	}
	return ""
}

// resolve follows aliases.
func resolve(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

// kind tells people what a node is.
func kind(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "fields"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case isNull(n):
		return "nothing"
	case n.Tag == "!!str":
		return strconv.Quote(shorten(n.Value))
	default:
		return shorten(n.Value)
	}
}

// shown is a field's name as a message has it.
func shown(name string) string {
	if name == "" || strings.ContainsFunc(name, func(c rune) bool { return !unicode.IsPrint(c) }) {
		return strconv.Quote(shorten(name))
	}
	return shorten(name)
}

// shorten cuts a text that would fill the screen.
func shorten(text string) string {
	if len(text) > 60 {
		return strings.ToValidUTF8(text[:60], "") + "..."
	}
	return text
}

// names finds fields by name: by looking at each of a few, by an index of many.
type names struct {
	keys  []*yaml.Node
	index map[string]int
}

const fewNames = 32

// find is the place of the name in keys, -1 if it is not there.
func (s *names) find(name string) int {
	if s.index != nil {
		if i, ok := s.index[name]; ok {
			return i
		}
		return -1
	}
	return slices.IndexFunc(s.keys, func(key *yaml.Node) bool { return key.Value == name })
}

func (s *names) add(key *yaml.Node) {
	s.keys = append(s.keys, key)
	switch {
	case s.index != nil:
		s.index[key.Value] = len(s.keys) - 1
	case len(s.keys) > fewNames:
		s.index = make(map[string]int, 2*fewNames)
		for i, k := range s.keys {
			s.index[k.Value] = i
		}
	}
}
