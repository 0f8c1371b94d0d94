//go:build !race

package casetest

// Race reports whether the race detector runs.
const Race = false
