//go:build !unix

package app

import "math"

// maxFiles is how many file descriptors the process may have.
func maxFiles() uint64 { return math.MaxInt32 }
