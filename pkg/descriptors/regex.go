package descriptors

import (
	"errors"
	"fmt"
	"regexp/syntax"
	"strings"

	"github.com/weir-ratelimit/weir/internal/words"
)

// Bounds of one regex: they keep its automaton small.
const (
	maxRegexBytes = 1024
	maxRegexSize  = 500 // instructions
)

// newRegex compiles an RE2 that must match whole values. It is found by the fixed text that they begin and end with.
func newRegex(text string, to *Node) (*Pattern, error) {
	if len(text) > maxRegexBytes {
		return nil, fmt.Errorf("regex: has %d bytes, at most %d are allowed; write several descriptors",
			len(text), maxRegexBytes)
	}
	tree, err := syntax.Parse(text, syntax.Perl)
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
	if n := len(program.Inst); n > maxRegexSize {
		return nil, fmt.Errorf("regex: is compiled to %d steps, at most %d are allowed; repeat less, or write several "+
			"descriptors", n, maxRegexSize)
	}
	re, err := newAutomaton(program)
	if err != nil {
		return nil, fmt.Errorf("regex: %w", err)
	}
	return &Pattern{text: text, prefix: prefix, suffix: suffix, re: re, to: to}, nil
}

// fixedParts are the texts that every match begins with and ends with. They may overlap.
func fixedParts(tree *syntax.Regexp) (prefix, suffix string) {
	parts := []*syntax.Regexp{tree}
	if tree.Op == syntax.OpConcat {
		parts = tree.Sub
	}
	texts := make([]string, len(parts))
	first, last := len(parts), -1 // of those that are not fixed
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

// fixedText is what the part matches, if it is one text only.
func fixedText(part *syntax.Regexp) (text string, fixed bool) {
	switch part.Op {
	case syntax.OpLiteral:
		text = string(part.Rune)
		// The bytes of what is no UTF-8 match \ufffd, too.
		return text, part.Flags&syntax.FoldCase == 0 && !strings.ContainsRune(text, '\ufffd')
	case syntax.OpEmptyMatch, syntax.OpBeginText, syntax.OpEndText:
		return "", true
	case syntax.OpCapture:
		return fixedText(part.Sub[0])
	default:
		return "", false
	}
}
