package descriptors

import (
	"strings"
	"unicode/utf8"
)

// search looks for the first pattern in file order that matches a value.
type search struct {
	value string
	head  string // the beginning of value that patterns and regexes read
	left  int    // how many entries follow in the request
	stars bool   // only patterns with * are asked for

	best *Pattern // the first that matches, of those that were tried
	// open is the first that may match, of those that are not decided by head and that deny something at this depth.
	open *Pattern
}

// begin sets what does not change during the search.
func (s *search) begin(value string, left int) {
	s.value, s.head, s.left = value, value, left
	if len(value) > MaxPatternValue {
		s.head = wholeRunes(value, MaxPatternValue)
	}
}

// isLong reports whether the value goes on behind head.
func (s *search) isLong() bool { return len(s.head) < len(s.value) }

// wholeRunes returns the first bytes of the text, at most size, without a part of a character at their end.
func wholeRunes(text string, size int) string {
	for cut := size; cut > size-utf8.UTFMax; cut-- {
		if utf8.RuneStart(text[cut]) {
			return text[:cut]
		}
	}
	return text[:size] // no character is that long, so this is none
}

// isBefore reports whether a pattern of that order goes before all that are known to match.
func (s *search) isBefore(order int) bool { return s.best == nil || order < s.best.order }

// found notes a pattern that matches.
func (s *search) found(p *Pattern) {
	if s.isBefore(p.order) {
		s.best = p
	}
}

// try decides about patterns in file order, whose prefix the value has.
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

// note notes what was decided about a pattern.
func (s *search) note(p *Pattern, matches answer) {
	switch matches {
	case yes:
		s.found(p)
	case unsure:
		s.leaveOpen(p, p.enforced)
	case no:
	}
}

// leaveOpen notes a pattern that may match, if it is enforced.
func (s *search) leaveOpen(p *Pattern, enforced levels) {
	if enforced.has(s.left) && (s.open == nil || p.order < s.open.order) {
		s.open = p
	}
}

// purpose is what a look at groups is for.
type purpose uint8

const (
	toDecide    purpose = iota // whether their patterns match
	toMatch                    // all else of them matches
	toLeaveOpen                // all else of them may match
)

// visit does with a group, whose fixed text the value has, what the look is for.
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

// tryOnly decides about a group's only pattern.
func (s *search) tryOnly(p *Pattern) {
	if s.isBefore(p.order) && len(s.value) >= len(p.prefix)+len(p.suffix) && strings.HasSuffix(s.value, p.suffix) {
		s.best = p
	}
}

// isOpen reports whether it is not decided which pattern comes first, and one that may is enforced.
func (s *search) isOpen() bool { return s.open != nil && s.isBefore(s.open.order) }

// group is the patterns of a branch that begin with the same fixed text, or of these the ones that end with the same.
type group struct {
	first     int        // the order of the first one
	up        int32      // the group of the longest text that this one begins, or ends, with, -1: none; see affixes
	enforced  levels     // where below one of them a limit denies; only for the groups of sequences.tails
	only      *Pattern   // the only one, if it is all of the group and has neither texts between two * nor is a regex
	few       []*Pattern // tried one by one, in file order
	bySuf     *affixes   // nil if there are few: the patterns that have no text between two *, and regexes
	sequences *sequences // nil if there are few: the patterns that have
}

// maxTried is how many patterns with the same beginning are tried one by one.
const maxTried = 4

// look looks through the group, whose patterns' prefix the value has.
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

// MaxPatternValue is the number of bytes of a value that Weir reads to match it against regexes, and against the
// texts that a pattern has between two *. A longer value is matched by its beginning and its end, as far as these
// decide (docs/adr/0036).
const MaxPatternValue = 1024

// Pattern is a value with *, each of which stands for any characters or none; or a regex; or a block of addresses,
// which has only To and order.
type Pattern struct {
	Text           string     // as a rule file has it, empty for blocks of addresses
	To             *Node      // where the pattern leads
	prefix, suffix string     // the fixed text before the first * and after the last; of a regex: that all matches have
	middle         []string   // the texts between two *, in order; none is empty
	re             *automaton // of a regex
	order          int        // among the patterns of one branch, in file order
	enforced       levels     // where below the pattern a limit denies
}

// levels is a set of levels below a pattern: bit 0 is the pattern's own level, the last bit all that are deeper.
type levels uint32

const deepest = 31

// below returns the levels as seen from one level above.
func (s levels) below() levels { return s<<1 | s&(1<<deepest) }

// has reports whether the level is in the set.
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

// answer reports whether a value matches.
type answer uint8

const (
	no answer = iota
	yes
	unsure // the value is longer than MaxPatternValue, and what Weir reads of it does not decide
)

// decide reports whether a value that begins with the pattern's prefix matches it. It looks for each text where that
// first occurs after the one before it, so it reads the value once.
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
