//go:build race

package casetest

// Race reports whether the race detector runs. It makes a program five to ten times slower, and sync.Pool drops values
// on purpose.
const Race = true
