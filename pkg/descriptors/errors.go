package descriptors

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Error is one thing that is wrong with a rule file, or that it warns of.
type Error struct {
	File         string
	Line, Column int    // from 1
	Msg          string // what is wrong, and what to write instead
	Code         string // of a warning: one of the Warn words; else empty
}

// The kinds of warnings.
const (
	WarnMaxWait     = "max_wait"        // answers come after Envoy's timeout
	WarnUnreachable = "unreachable"     // no request can reach a rule
	WarnRedundant   = "redundant_limit" // another limit of the same rule always denies first
	WarnBurst       = "burst_of_one"    // two requests at once never pass
	WarnHugeLog     = "huge_log"        // one counter can take much memory
	WarnShortQueue  = "short_queue"     // a queue is full before anybody waits for max_wait
	WarnManyLimits  = "many_limits"     // a request that reaches one rule asks more counters than it may by default
)

// Error is "file:line:column: message".
func (e *Error) Error() string { return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Msg) }

// Errors are all things that are wrong with all files, sorted by file, line and column.
type Errors []*Error

// Error has one line for each error.
func (es Errors) Error() string {
	lines := make([]string, len(es))
	for i, e := range es {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// position is a place in a rule file.
type position struct {
	file         string
	line, column int
}

// String is how one error mentions another place.
func (p position) String() string { return fmt.Sprintf("%s:%d:%d", p.file, p.line, p.column) }

// problems collects what is wrong, so that everything can be said at once.
type problems struct {
	found      Errors
	warnings   Errors // nothing is wrong, but something may not do what was meant
	stores     Errors // where stores are named, with their name as the message
	incomplete bool   // rules could not be read, so that what refers to them cannot be checked
}

func (p *problems) add(at position, format string, args ...any) {
	p.found = append(p.found, &Error{File: at.file, Line: at.line, Column: at.column, Msg: fmt.Sprintf(format, args...)})
}

func (p *problems) warn(code string, at position, format string, args ...any) {
	p.warnings = append(p.warnings, &Error{File: at.file, Line: at.line, Column: at.column, Msg: fmt.Sprintf(format, args...), Code: code})
}

// err is nil if there are no problems, else Errors. What was found several times, because several aliases lead
// to it, is told once.
func (p *problems) err() error {
	if len(p.found) == 0 {
		return nil
	}
	return p.found.sorted()
}

// sorted is es by file, line and column, each once.
func (es Errors) sorted() (once Errors) {
	slices.SortStableFunc(es, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	seen := map[Error]bool{}
	for _, e := range es {
		if !seen[*e] {
			seen[*e] = true
			once = append(once, e)
		}
	}
	return once
}

// didYouMean is a hint at the known name that is nearest to what was written, empty if none is near.
func didYouMean(written string, known []string) string {
	best, distance := "", 1+max(1, (len(written)+1)/3) // two letters swapped in a word of five are two edits
	for _, name := range known {
		if d := editDistance(written, name, distance); d < distance {
			best, distance = name, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("did you mean %s?", best)
}

// editDistance is the number of insertions, deletions and replacements of a byte that make b of a; at least
// bound if it is not below bound.
func editDistance(a, b string, bound int) int {
	if len(a)-len(b) >= bound || len(b)-len(a) >= bound {
		return bound
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
