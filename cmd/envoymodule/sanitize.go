//go:build envoymodule && sanitize

package main

// The tag sanitize makes the C part detect its memory errors, for a test: e2e/envoymodule, TestMemory.

// #cgo CFLAGS: -fsanitize=address,undefined -fno-omit-frame-pointer -g
// #cgo LDFLAGS: -fsanitize=address,undefined
import "C"
