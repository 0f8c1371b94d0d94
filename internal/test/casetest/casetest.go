// Package casetest has what tests without programs share. Main finds goroutines that a package's tests leave behind;
// Pick and Check give slow tests a short form, which make test runs, and a long form, which make long runs by setting
// WEIR_LONG=1: both have the same assertions, and the long one tries more. Compile, Entries and Explain are for tests
// with rules.
package casetest

import (
	"flag"
	"os"
	"strconv"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

// IsLong reports whether tests run in their long form.
func IsLong() bool { return os.Getenv("WEIR_LONG") == "1" }

// Pick returns how much a test tries: how many requests it sends, or for how long.
func Pick[T any](short, long T) T {
	if IsLong() {
		return long
	}
	return short
}

// WithoutRace skips the test in its short form where the race detector runs: a simulation of minutes in virtual time,
// which takes seven times as long there. make test also runs the test's package without the race detector.
func WithoutRace(t *testing.T) {
	t.Helper()
	if Race && !IsLong() {
		t.Skip("a simulation: runs without the race detector, or with WEIR_LONG=1")
	}
}

// Main is a TestMain that finds goroutines left behind, and that draws the same random cases in every run in the short
// form, that many for each property. The flags -rapid.seed (0: others each time) and -rapid.checks go first. The
// options say which goroutines may be left.
func Main(m *testing.M, checks int, left ...goleak.Option) {
	defaults := map[string]string{"rapid.checks": strconv.Itoa(checks), "rapid.nofailfile": "true"}
	if !IsLong() {
		defaults["rapid.seed"] = "1"
	}
	for name, value := range defaults {
		f := flag.Lookup(name)
		if err := f.Value.Set(value); err != nil {
			os.Exit(2)
		}
		f.DefValue = value // which Check takes for "not given"
	}
	goleak.VerifyTestMain(m, left...)
}

// Check is rapid.Check with that many random cases in the short form, unless the flag -rapid.checks says otherwise. It
// sets that flag for the time of the call, so tests that call it are not parallel.
func Check(t *testing.T, short int, property func(*rapid.T)) {
	t.Helper()
	checks := flag.Lookup("rapid.checks")
	if checks.Value.String() == checks.DefValue && !IsLong() {
		if err := checks.Value.Set(strconv.Itoa(short)); err != nil {
			t.Fatal(err)
		}
		defer checks.Value.Set(checks.DefValue) //nolint:errcheck // it was set before
	}
	rapid.Check(t, property)
}
