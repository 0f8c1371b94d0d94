//go:build race

package longtest

// Race reports whether the race detector runs: a program is five to ten times slower, and sync.Pool forgets on purpose
// what it has.
const Race = true
