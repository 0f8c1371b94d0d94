package descriptors

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Error is an error or a warning about a rule file.
type Error struct {
	Position

	Msg  string // the error, and what to write instead
	Code string // one of the Warn constants for a warning; else empty
	// More is the number of errors that are not listed. It is 0 except in the last Error, whose Msg contains it, too.
	More int
}

// Codes of warnings.
const (
	WarnMaxWait     = "max_wait"       // responses may come after Envoy's timeout
	WarnUnreachable = "unreachable"    // no request can reach a rule
	WarnLiteral     = "literal_value"  // a value that looks like a regex, but is matched as plain text
	WarnUnlimited   = "unlimited_rate" // a rate beside unlimited: true, which has no effect
	WarnTolerated   = "tolerated"      // a rule that envoyproxy/ratelimit accepts, as does --lenient-rules
	WarnQuota       = "quota"          // a rule that suits the rate limit service better than RLQS
	WarnInvisible   = "invisible"      // an invisible character in a key or value
	WarnNoEffect    = "no_effect"      // a field of envoyproxy/ratelimit that has no effect in Weir
	WarnReservation = "reservation"    // a reservation that few requests fill
	WarnDefault     = "default"        // a default that does not fit a limit
)

// maxListed is the maximum number of errors, and of warnings, that are listed. Further findings are only counted, so
// that a file with a million errors costs neither much memory nor a response of a hundred megabytes.
const maxListed = 1_000

// Error returns "file:line:column: message".
func (e *Error) Error() string { return e.String() + ": " + e.Msg }

// Errors has the errors of all files, sorted by file, line and column.
type Errors []*Error

// Error returns one line per error.
func (es Errors) Error() string {
	lines := make([]string, len(es))
	for i, e := range es {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// Count returns the number of errors, including those that are only counted.
func (es Errors) Count() (n int) {
	for _, e := range es {
		n += max(1, e.More)
	}
	return n
}

// findings is a bounded list of errors or of warnings.
type findings struct {
	total  int // number of calls of add
	listed Errors
	seen   map[Error]bool // findings that are listed
	more   *Error         // error with the number of findings that are not listed; nil if all are listed
}

// add lists the finding if there is room. It lists a finding only once if several aliases lead to it.
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

// full reports whether add only counts further findings.
func (f *findings) full() bool { return len(f.listed) >= maxListed }

// sorted returns the listed findings by file, line and column, followed by the number of findings that are not listed.
func (f *findings) sorted() Errors {
	slices.SortStableFunc(f.listed, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	if f.more != nil {
		f.more.Msg = fmt.Sprintf("and %d more; correct the first ones, and check again", f.more.More)
		f.listed = append(f.listed, f.more)
	}
	return f.listed
}

// envoyTimeout is the default timeout of Envoy's rate limit filter.
const envoyTimeout = 20 * time.Millisecond

// warnWait warns of delays that are longer than Envoy waits.
func (c *Builder) warnWait(l *checked) {
	if wait := l.policy.MaxWait(); wait > envoyTimeout {
		c.Warnf(WarnMaxWait, l.fieldAt("max_wait"),
			"requests are delayed by up to %s, but Envoy waits only %s unless its rate limit "+
				"filter has a longer timeout; raise that timeout, or write a shorter max_wait", wait, envoyTimeout)
	}
}
