//go:build race

package casetest

// Race reports whether the race detector runs: a program is five to ten times slower, and sync.Pool forgets on purpose
// what it has.
const Race = true
