package descriptors

import (
	"iter"
	"regexp"
	"slices"
	"strings"
)

// pattern is a value with *, each of which stands for any characters or none; or a regex; or a block of addresses,
// which has only to and order.
type pattern struct {
	text           string
	prefix, suffix string         // before the first * and after the last
	middle         []string       // between them, in order; none is empty. Of a regex: one text anywhere
	re             *regexp.Regexp // of a regex
	to             *node
	order          int // place in the file, among the patterns of one branch

	more []*pattern // of the first of those with one prefix, or suffix: the others, in file order
}

func newPattern(text string, to *node) pattern {
	first, last := strings.IndexByte(text, '*'), strings.LastIndexByte(text, '*')
	p := pattern{text: text, prefix: text[:first], suffix: text[last+1:], to: to}
	for part := range strings.SplitSeq(text[first:last+1], "*") {
		if part != "" {
			p.middle = append(p.middle, part)
		}
	}
	return p
}

// all are the pattern and those behind it with the same prefix, or suffix.
func (p *pattern) all() iter.Seq[*pattern] {
	return func(yield func(*pattern) bool) {
		if !yield(p) {
			return
		}
		for _, q := range p.more {
			if !yield(q) {
				return
			}
		}
	}
}

// match looks for each part where it first occurs behind the one before it, so it reads the value once.
func (p *pattern) match(value string) bool {
	if p.re == nil && len(value) < len(p.prefix)+len(p.suffix) ||
		!strings.HasPrefix(value, p.prefix) || !strings.HasSuffix(value, p.suffix) {
		return false
	}
	if p.re != nil {
		return strings.Contains(value, p.middle[0]) && p.re.MatchString(value)
	}
	rest := value[len(p.prefix) : len(value)-len(p.suffix)]
	for _, part := range p.middle {
		i := strings.Index(rest, part)
		if i < 0 {
			return false
		}
		rest = rest[i+len(part):]
	}
	return true
}

// patterns finds the first of many patterns, in file order, that matches a value. It looks only at those whose
// prefix, or suffix if that is longer, is the value's: one look-up for each length that occurs.
type patterns struct {
	prefixes, suffixes affixes
}

// affixes are patterns by a part that the value must start with, or end with.
type affixes struct {
	lengths []int
	by      map[string]*pattern // the first in file order
}

// add returns how many patterns have the same prefix or suffix as this one now, and are tried one by one.
func (ps *patterns) add(p *pattern) (same int) {
	if len(p.suffix) > len(p.prefix) {
		return ps.suffixes.add(p.suffix, p)
	}
	return ps.prefixes.add(p.prefix, p)
}

func (a *affixes) add(part string, p *pattern) (same int) {
	if a.by == nil {
		a.by = map[string]*pattern{}
	}
	if first := a.by[part]; first != nil {
		first.more = append(first.more, p)
		return 1 + len(first.more)
	}
	a.by[part] = p
	if i, found := slices.BinarySearch(a.lengths, len(part)); !found {
		a.lengths = slices.Insert(a.lengths, i, len(part))
	}
	return 1
}

// match is the first pattern in file order that matches the value: best, which is known to and may be nil, or one of
// these.
func (ps *patterns) match(value string, best *pattern) *pattern {
	for _, n := range ps.prefixes.lengths {
		if n > len(value) {
			break
		}
		best = first(best, ps.prefixes.by[value[:n]], value)
	}
	for _, n := range ps.suffixes.lengths {
		if n > len(value) {
			break
		}
		best = first(best, ps.suffixes.by[value[len(value)-n:]], value)
	}
	return best
}

// first is the earliest pattern that matches: best, which is known to and may be nil, or p, which may be nil, or one of
// those behind p.
func first(best, p *pattern, value string) *pattern {
	if p == nil || best != nil && best.order < p.order {
		return best
	}
	if p.match(value) {
		return p
	}
	for _, q := range p.more {
		if best != nil && best.order < q.order {
			break
		}
		if q.match(value) {
			return q
		}
	}
	return best
}
