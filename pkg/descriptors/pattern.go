package descriptors

import (
	"strings"
)

// MaxPatternValue is the number of bytes of a value that Weir reads to match it against regexes, and against the
// texts that a pattern has between two *. A longer value is matched by its beginning and its end, as far as these
// decide (docs/adr/0036-bounded-matching.md).
const MaxPatternValue = 1024

// Pattern is a value with *, each of which stands for any characters or none; or a regex; or a block of addresses,
// which has only to and order.
type Pattern struct {
	text           string
	prefix, suffix string     // the fixed text before the first * and after the last; of a regex: that all matches have
	middle         []string   // the texts between two *, in order; none is empty
	re             *automaton // of a regex
	to             *Node
	order          int    // among the patterns of one branch, in file order
	enforced       levels // where below the pattern a limit denies
}

// levels is a set of levels below a pattern: bit 0 is the pattern's own level, the last bit all that are deeper.
type levels uint32

const deepest = 31

// below returns the levels as seen from one level above.
func (s levels) below() levels { return s<<1 | s&(1<<deepest) }

// has reports whether the level is in the set.
func (s levels) has(level int) bool { return s>>min(level, deepest)&1 != 0 }

func newPattern(text string, to *Node) Pattern {
	first, last := strings.IndexByte(text, '*'), strings.LastIndexByte(text, '*')
	p := Pattern{text: text, prefix: text[:first], suffix: text[last+1:], to: to}
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
