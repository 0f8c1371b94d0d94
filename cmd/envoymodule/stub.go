//go:build !envoymodule

// Command envoymodule is libweir.so, Weir as a dynamic module of Envoy. Without the build tag envoymodule, which
// requires a C compiler, it is a program that prints how to build it.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "weir: this program is a library that Envoy loads; build the library with make module")
	os.Exit(2)
}
