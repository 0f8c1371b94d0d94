package descriptors

import (
	"strings"
	"unicode/utf8"
)

// search looks for the first pattern in file order that matches a value.
type search struct {
	value string
	head  string // start of value, which patterns and regexes read
	left  int    // number of entries that follow in the request
	stars bool   // consider only patterns with *

	best *Pattern // first matching pattern among those that were tried
	// open is the first pattern that head does not decide and that leads to a limit that denies at this depth.
	open *Pattern
}

// begin sets the fields that do not change during the search.
func (s *search) begin(value string, left int) {
	s.value, s.head, s.left = value, value, left
	if len(value) > MaxPatternValue {
		s.head = wholeRunes(value, MaxPatternValue)
	}
}

// isLong reports whether the value is longer than head.
func (s *search) isLong() bool { return len(s.head) < len(s.value) }

// wholeRunes returns at most the first size bytes of the text, without a partial character at the end.
func wholeRunes(text string, size int) string {
	for cut := size; cut > size-utf8.UTFMax; cut-- {
		if utf8.RuneStart(text[cut]) {
			return text[:cut]
		}
	}
	return text[:size] // invalid UTF-8: no character is that long
}

// isBefore reports whether a pattern of that order precedes the best match so far.
func (s *search) isBefore(order int) bool { return s.best == nil || order < s.best.order }

func (s *search) found(p *Pattern) {
	if s.isBefore(p.order) {
		s.best = p
	}
}

// try decides patterns in file order. The value must have the patterns' prefix.
func (s *search) try(patterns []*Pattern) {
	for _, p := range patterns {
		if !s.isBefore(p.order) {
			return
		}
		if !s.stars || p.re == nil {
			s.note(p, p.decide(s))
		}
	}
}

func (s *search) note(p *Pattern, matches answer) {
	switch matches {
	case yes:
		s.found(p)
	case unsure:
		s.leaveOpen(p, p.enforced)
	case no:
	}
}

// leaveOpen records a pattern that may match, if it is enforced.
func (s *search) leaveOpen(p *Pattern, enforced levels) {
	if enforced.has(s.left) && (s.open == nil || p.order < s.open.order) {
		s.open = p
	}
}

type purpose uint8

const (
	toDecide    purpose = iota // decide whether the patterns of the group match
	toMatch                    // the other parts of the patterns match
	toLeaveOpen                // the other parts of the patterns may match
)

// visit handles a group whose fixed text the value has.
func (s *search) visit(g *group, why purpose) {
	switch why {
	case toDecide:
		s.look(g)
	case toMatch:
		s.found(g.few[0])
	case toLeaveOpen:
		s.leaveOpen(g.few[0], g.enforced)
	}
}

// tryOnly sets s.best to a group's only pattern if the value matches this pattern and no earlier one.
func (s *search) tryOnly(p *Pattern) {
	if s.isBefore(p.order) && len(s.value) >= len(p.prefix)+len(p.suffix) && strings.HasSuffix(s.value, p.suffix) {
		s.best = p
	}
}

// isOpen reports whether it is undecided which pattern matches first, and a possible pattern is enforced.
func (s *search) isOpen() bool { return s.open != nil && s.isBefore(s.open.order) }

// group has the patterns of a branch with the same prefix, or with the same prefix and suffix.
type group struct {
	first     int        // order of the first pattern
	up        int32      // group of the longest shorter text with which this group's begins (or ends); -1: none
	enforced  levels     // union of the patterns' enforced levels; set only in sequences.tails
	only      *Pattern   // the only pattern of the group, if it is not a regex and has no middle
	few       []*Pattern // patterns that are tried one by one, in file order
	bySuf     *affixes   // regexes and patterns without middle; nil if there are few
	sequences *sequences // patterns with middle; nil if there are few
}

// maxTried is the maximum number of patterns of a group that are tried one by one.
const maxTried = 4

// look searches the group. The value must have the prefix of its patterns.
func (s *search) look(g *group) {
	if !s.isBefore(g.first) {
		return
	}
	s.try(g.few)
	if g.bySuf != nil {
		g.bySuf.look(s, s.value, toDecide)
	}
	if g.sequences != nil {
		g.sequences.look(s)
	}
}

// MaxPatternValue is the number of bytes of a value that Weir reads to match regexes and the texts between two * of a
// pattern. A longer value is matched by its beginning and its end, if these two parts decide (docs/adr/0036).
const MaxPatternValue = 1024

// Pattern is a value with * (any text), a regex, or a rule's blocks of addresses, for which only To and order are set.
type Pattern struct {
	Text           string     // as in the rule file; empty for blocks of addresses
	To             *Node      // node to which the pattern leads
	prefix, suffix string     // fixed text before the first * and after the last; of a regex: of all its matches
	middle         []string   // texts between two *, in order; none is empty
	re             *automaton // nil unless it is a regex
	order          int        // position among the patterns of the branch, in file order
	enforced       levels     // levels below the pattern at which a limit denies
}

// levels is a set of levels below a pattern. Bit 0 is the pattern's own level; the last bit means all deeper levels.
type levels uint32

const deepest = 31

// below returns the levels as counted from one level above.
func (s levels) below() levels { return s<<1 | s&(1<<deepest) }

func (s levels) has(level int) bool { return s>>min(level, deepest)&1 != 0 }

func newPattern(text string, to *Node) *Pattern {
	first, last := strings.IndexByte(text, '*'), strings.LastIndexByte(text, '*')
	p := &Pattern{Text: text, To: to, prefix: text[:first], suffix: text[last+1:]}
	for part := range strings.SplitSeq(text[first:last+1], "*") {
		if part != "" {
			p.middle = append(p.middle, part)
		}
	}
	return p
}

type answer uint8

const (
	no answer = iota
	yes
	unsure // the value is longer than MaxPatternValue, and its head does not decide
)

// decide reports whether a value that has the pattern's prefix matches. It searches for the texts of middle in order,
// starting where the previous text ends, so it reads the value once.
func (p *Pattern) decide(s *search) answer {
	if !strings.HasSuffix(s.value, p.suffix) {
		return no
	}
	if p.re != nil {
		return p.re.decide(s, p.re.run(s.head))
	}
	if len(s.value) < len(p.prefix)+len(p.suffix) {
		return no
	}
	at := len(p.prefix)
	for _, part := range p.middle {
		i := strings.Index(s.head[min(at, len(s.head)):], part)
		if i < 0 {
			if s.isLong() {
				return unsure
			}
			return no
		}
		at += i + len(part)
	}
	if at+len(p.suffix) > len(s.value) {
		return no
	}
	return yes
}
