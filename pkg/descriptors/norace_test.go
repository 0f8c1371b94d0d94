//go:build !race

package descriptors_test

// raceEnabled says that sync.Pool forgets on purpose what it has.
const raceEnabled = false
