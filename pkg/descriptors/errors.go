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
	// More is the number of further errors that are not listed, in the last Error of a file that has too many; else 0. Msg
	// says so.
	More int
}

// The kinds of warnings.
const (
	WarnMaxWait     = "max_wait"        // answers come after Envoy's timeout
	WarnUnreachable = "unreachable"     // no request can reach a rule
	WarnRedundant   = "redundant_limit" // another limit of the same rule always denies first
	WarnBurst       = "burst_of_one"    // two requests at once never pass
	WarnHugeLog     = "huge_log"        // one counter can take much memory
	WarnOctal       = "octal_number"    // 010 is read as 8
	WarnLiteral     = "literal_value"   // a block of addresses or a regex that is matched as text
	WarnUnlimited   = "unlimited_rate"  // a rate beside unlimited: true, which nothing applies
	WarnNotRead     = "not_read"        // a file that looks like rules, but has another ending
	WarnShortQueue  = "short_queue"     // a queue is full before anybody waits for max_wait
	WarnManyLimits  = "many_limits"     // a request that reaches one rule asks more counters than it may by default
)

// Bounds of what is kept of errors, and of warnings. What is beyond is only counted, so that a file of a million errors
// costs neither memory nor an answer of a hundred megabytes.
const (
	maxFileErrors = 1_000  // of one file
	maxErrors     = 10_000 // of all files
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

// Count is the number of errors, those included that are only counted.
func (es Errors) Count() (n int) {
	for _, e := range es {
		n += max(1, e.More)
	}
	return n
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
	found      findings
	warnings   findings // nothing is wrong, but something may not do what was meant
	stores     Errors   // where stores are named, with their name as the message
	incomplete bool     // rules could not be read, so that what refers to them cannot be checked
}

func (p *problems) add(at position, format string, args ...any) { p.found.add("", at, format, args...) }

func (p *problems) warn(code string, at position, format string, args ...any) {
	p.warnings.add(code, at, format, args...)
}

// errors is how many errors were found so far. It grows with each, also where no more are kept.
func (p *problems) errors() int { return p.found.total }

// err is nil if there are no problems, else Errors.
func (p *problems) err() error {
	if p.errors() == 0 {
		return nil
	}
	return p.found.sorted()
}

// findings is a bounded list of errors, or of warnings.
type findings struct {
	total  int // added, with those that were there already
	kept   Errors
	seen   map[Error]bool // each that is kept
	byFile map[string]*fileFindings
	beyond *Error // the first of the file for which nothing could be kept, and how many there are of such
}

// fileFindings says how many findings of one file are kept, and how many are not.
type fileFindings struct{ kept, more int }

// add keeps the finding, unless there are too many. One that several aliases lead to is kept once.
func (f *findings) add(code string, at position, format string, args ...any) {
	f.total++
	of := f.byFile[at.file]
	switch full := f.full(at.file); {
	case full && of != nil:
		of.more++
		return
	case full:
		if f.beyond == nil {
			f.beyond = &Error{File: at.file, Line: at.line, Column: at.column, Code: code}
		}
		f.beyond.More++
		return
	}
	e := &Error{File: at.file, Line: at.line, Column: at.column, Msg: fmt.Sprintf(format, args...), Code: code}
	if f.seen[*e] {
		return
	}
	if f.seen == nil {
		f.seen, f.byFile = map[Error]bool{}, map[string]*fileFindings{}
	}
	if of == nil {
		of = &fileFindings{}
		f.byFile[at.file] = of
	}
	f.seen[*e] = true
	of.kept++
	f.kept = append(f.kept, e)
}

// full says that no more of the file's findings are kept.
func (f *findings) full(file string) bool {
	of := f.byFile[file]
	return of != nil && of.kept >= maxFileErrors || len(f.kept) >= maxErrors
}

// sorted is what was kept, by file, line and column, and behind each file how many were not.
func (f *findings) sorted() (all Errors) {
	slices.SortStableFunc(f.kept, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	for i, e := range f.kept {
		all = append(all, e)
		last := i+1 == len(f.kept) || f.kept[i+1].File != e.File
		if more := f.byFile[e.File].more; last && more > 0 {
			all = append(all, &Error{
				File: e.File, Line: e.Line, Column: e.Column, Code: e.Code, More: more,
				Msg: fmt.Sprintf("and %d more in this file; mend the first ones, and check again", more),
			})
		}
	}
	if f.beyond != nil {
		f.beyond.Msg = fmt.Sprintf("and %d more in this file and others; mend the first ones, and check again", f.beyond.More)
		all = append(all, f.beyond)
	}
	return all
}

// Nearest is the known name that is most like the one that was written, empty if none is.
func Nearest(written string, known []string) string { return near(written, known) }

// Distance is the number of insertions, deletions and replacements of a byte that make one name of the other.
func Distance(a, b string) int { return editDistance(a, b, len(a)+len(b)+1) }

// didYouMean is a hint at the known name that is nearest to what was written, empty if none is near.
func didYouMean(written string, known []string) string {
	if best := near(written, known); best != "" {
		return fmt.Sprintf("did you mean %s?", best)
	}
	return ""
}

// near is the known name that is nearest to what was written, empty if none is near.
func near(written string, known []string) (best string) {
	distance := 1 + max(1, (len(written)+1)/3) // two letters swapped in a word of five are two edits
	for _, name := range known {
		if d := editDistance(written, name, distance); d < distance {
			best, distance = name, d
		}
	}
	return best
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
