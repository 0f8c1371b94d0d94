package descriptors

import (
	"errors"
	"fmt"
	"regexp/syntax"
	"strings"
	"unicode/utf8"

	"github.com/weir-ratelimit/weir/internal/words"
)

// Bounds of one regex, which keep its automaton small.
const (
	maxRegexBytes = 1024
	maxRegexSize  = 500 // instructions
)

// Bounds of the work of compiling regexes, in steps of 20 to 200 ns: of one regex, and of all regexes of a set. The
// bounds do not depend on the speed of the machine.
const (
	maxRegexWork   = 1_000_000
	maxRegexesWork = 20_000_000 // also bounds memory, because each cell of an automaton (4 bytes) takes over one step
)

var errWork = errors.New("takes too long to compile; use fewer or smaller sets of characters such as \\pL or (?i), " +
	"repeat less, or write several descriptors")

// parseWork returns the work of parsing a regex beyond reading its text. The parser copies a set such as \pL, of 700
// ranges, each time it is named, and sorts sets in brackets. To ignore case, it looks up each character of a set; a
// range beyond ASCII may have 100,000 characters.
func parseWork(text string) int {
	work := 1000 * (strings.Count(text, `\p`) + strings.Count(text, `\P`))
	if !strings.Contains(text, "(?") || !strings.Contains(text, "i") {
		return work
	}
	if strings.Contains(text, `\x`) || strings.ContainsFunc(text, func(c rune) bool { return c >= utf8.RuneSelf }) {
		work += 50_000 * strings.Count(text, "-")
	}
	return work
}

// newRegex compiles an RE2 that must match whole values. It sets *work to the number of steps that compiling takes.
func newRegex(text string, to *Node, work *int) (*Pattern, error) {
	if len(text) > maxRegexBytes {
		return nil, fmt.Errorf("regex: has %d bytes, at most %d are allowed; write several descriptors",
			len(text), maxRegexBytes)
	}
	if *work = parseWork(text); *work > maxRegexWork {
		return nil, fmt.Errorf("regex: %w", errWork)
	}
	tree, err := syntax.Parse(text, syntax.Perl|syntax.DotNL)
	if err != nil {
		if wrong := (*syntax.Error)(nil); errors.As(err, &wrong) {
			err = fmt.Errorf("%s in %s", wrong.Code, words.Shown(wrong.Expr))
		}
		return nil, fmt.Errorf("regex: %w; write an RE2 regular expression, and double each \\ within double quotes", err)
	}
	prefix, suffix := fixedParts(tree)
	program, err := syntax.Compile(tree.Simplify())
	if err != nil {
		return nil, fmt.Errorf("regex: %w", err)
	}
	*work += 10 * len(program.Inst)
	if n := len(program.Inst); n > maxRegexSize {
		return nil, fmt.Errorf("regex: is compiled to %d steps, at most %d are allowed; repeat less, or write several "+
			"descriptors", n, maxRegexSize)
	}
	re, err := newAutomaton(program, work)
	if err != nil {
		return nil, fmt.Errorf("regex: %w", err)
	}
	return &Pattern{Text: text, To: to, prefix: prefix, suffix: suffix, re: re}, nil
}

// fixedParts returns the prefix and suffix that every match has. They may overlap.
func fixedParts(tree *syntax.Regexp) (prefix, suffix string) {
	parts := []*syntax.Regexp{tree}
	if tree.Op == syntax.OpConcat {
		parts = tree.Sub
	}
	texts := make([]string, len(parts))
	first, last := len(parts), -1 // indexes of parts that are not fixed
	for i, part := range parts {
		text, fixed := fixedText(part)
		if !fixed {
			first, last = min(first, i), i
			continue
		}
		texts[i] = text
	}
	return strings.Join(texts[:first], ""), strings.Join(texts[last+1:], "")
}

// fixedText returns the only text that the part matches, if there is only one.
func fixedText(part *syntax.Regexp) (text string, fixed bool) {
	switch part.Op {
	case syntax.OpLiteral:
		text = string(part.Rune)
		// \ufffd also matches the bytes of invalid UTF-8.
		return text, part.Flags&syntax.FoldCase == 0 && !strings.ContainsRune(text, '\ufffd')
	case syntax.OpEmptyMatch, syntax.OpBeginText, syntax.OpEndText:
		return "", true
	case syntax.OpCapture:
		return fixedText(part.Sub[0])
	default:
		return "", false
	}
}
