package panics_test

import (
	"fmt"

	"github.com/weir-ratelimit/weir/pkg/panics"
)

// A program in which Weir is a guest handles a panic, and goes on.
func Example() {
	remove := panics.Handle(func(name string, value any, _ []byte) {
		fmt.Printf("%s: %v\n", name, value)
	})
	defer remove()

	panicked := panics.Catch("sweep of expired counters", func() { panic("no counter") })
	fmt.Println(panicked)
	// Output:
	// sweep of expired counters: no counter
	// true
}
