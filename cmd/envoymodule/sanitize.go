//go:build envoymodule && sanitize

package main

// The tag sanitize has the C part find its own memory faults, for a test: e2e/envoymodule, TestMemory.

// #cgo CFLAGS: -fsanitize=address,undefined -fno-omit-frame-pointer -g
// #cgo LDFLAGS: -fsanitize=address,undefined
import "C"
