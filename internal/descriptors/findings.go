package descriptors

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Error is one thing that is wrong with a rule file, or that it warns of.
type Error struct {
	Position

	Msg  string // what is wrong, and what to write instead
	Code string // of a warning: one of the Warn words; else empty
	// More is the number of further errors that are not listed, in the last Error if there are too many; else 0. Msg says
	// so.
	More int
}

// The kinds of warnings.
const (
	WarnMaxWait     = "max_wait"       // answers come after Envoy's timeout
	WarnUnreachable = "unreachable"    // no request can reach a rule
	WarnLiteral     = "literal_value"  // a regex that is matched as text
	WarnUnlimited   = "unlimited_rate" // a rate beside unlimited: true, which nothing applies
	WarnTolerated   = "tolerated"      // envoyproxy/ratelimit reads it, and so does a process with --lenient-rules
	WarnQuota       = "quota"          // a rule that suits the rate limit service better than RLQS
	WarnInvisible   = "invisible"      // a key or value with a character that nobody sees
	WarnNoEffect    = "no_effect"      // a field that envoyproxy/ratelimit knows and that does nothing here
)

// maxListed is the maximum number of errors, and of warnings, that are listed. Further ones are only counted, so that a
// file of a million errors costs neither memory nor an answer of a hundred megabytes.
const maxListed = 1_000

// Error is "file:line:column: message".
func (e *Error) Error() string { return e.String() + ": " + e.Msg }

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

// findings is a bounded list of errors, or of warnings.
type findings struct {
	total  int // added, with those that were there already
	listed Errors
	seen   map[Error]bool // each that is listed
	more   *Error         // the first one that is not listed, with the number of all such; nil if all are listed
}

// add lists the finding, unless there are too many. One that several aliases lead to is listed only the first time.
func (f *findings) add(code string, at Position, format string, args ...any) {
	f.total++
	if f.full() {
		if f.more == nil {
			f.more = &Error{Position: at, Code: code}
		}
		f.more.More++
		return
	}
	e := &Error{Position: at, Msg: fmt.Sprintf(format, args...), Code: code}
	if f.seen == nil {
		f.seen = map[Error]bool{}
	}
	if !f.seen[*e] {
		f.seen[*e] = true
		f.listed = append(f.listed, e)
	}
}

// full reports that no more findings are listed.
func (f *findings) full() bool { return len(f.listed) >= maxListed }

// sorted returns the listed findings by file, line and column, and then the number of others.
func (f *findings) sorted() Errors {
	slices.SortStableFunc(f.listed, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	if f.more != nil {
		f.more.Msg = fmt.Sprintf("and %d more; mend the first ones, and check again", f.more.More)
		f.listed = append(f.listed, f.more)
	}
	return f.listed
}

// envoyTimeout is how long Envoy waits for an answer unless its filter says otherwise.
const envoyTimeout = 20 * time.Millisecond

// warnWait warns of answers that come when Envoy no longer waits for them.
func (c *Builder) warnWait(l *checked) {
	if wait := l.policy.MaxWait(); wait > envoyTimeout {
		c.Warnf(WarnMaxWait, l.fieldAt("max_wait"),
			"requests are delayed by up to %s, but Envoy waits only %s unless its rate limit "+
				"filter has a longer timeout; raise that, or write a max_wait below it", wait, envoyTimeout)
	}
}
