package peer

import (
	"regexp"
)

// known is a difference that stays: a row of the table in docs/migrating.md.
type known struct {
	name string // the row's first column

	// hides reports whether it explains a difference of a random case; nil: random cases are made without it.
	hides func(*occasion) bool
}

// occasion is a difference in a random case.
type occasion struct {
	c          *randomCase
	at         int // the request
	field      string
	peer, weir *answer
}

// differsIn is the name of a field in a difference.
var differsIn = regexp.MustCompile(`^([^:]*): `)

var indexes = regexp.MustCompile(`\[\d+\]`)

// kind returns a difference's field without indexes, to count by.
func kind(diff string) string {
	return indexes.ReplaceAllString(differsIn.FindStringSubmatch(diff)[1], "")
}
