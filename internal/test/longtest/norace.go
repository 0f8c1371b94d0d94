//go:build !race

package longtest

// Race reports whether the race detector runs.
const Race = false
