// Package casetest has helpers for tests without programs. Main and FindLeaks find goroutines that a package leaks.
// Pick and Check give slow tests a short form, which make test runs, and a long form, which WEIR_LONG=1 selects: both
// have the same assertions, and the long form tries more. Receive waits for a channel. Compile, Entries and Explain are
// for tests with rules. Scenarios plays files of commands and compares the answers with the answers in the files.
// Update is the flag -update.
package casetest

import (
	"flag"
	"os"
	"strconv"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

// IsLong reports whether tests run in their long form.
func IsLong() bool { return os.Getenv("WEIR_LONG") == "1" }

// Pick returns the amount that a test tries, such as a number of requests or a time.
func Pick[T any](short, long T) T {
	if IsLong() {
		return long
	}
	return short
}

// WithoutRace skips the test in its short form with the race detector. It is for tests that compute for seconds, which
// then take seven times as long. test-programs in the Makefile must also run the package without the race detector.
func WithoutRace(t *testing.T) {
	t.Helper()
	if Race && !IsLong() {
		t.Skip("runs without the race detector, or with WEIR_LONG=1")
	}
}

// Receive returns the next value of the channel. It fails the test after five minutes, and names what it waited for.
func Receive[T any](tb testing.TB, from <-chan T, what string) (v T) {
	tb.Helper()
	select {
	case v = <-from:
	case <-time.After(5 * time.Minute):
		tb.Fatalf("no %s within five minutes", what)
	}
	return v
}

// Main is a TestMain that finds leaked goroutines. In the short form, it draws checks random cases per property, the
// same in every run. The flags -rapid.seed (0 for a random seed) and -rapid.checks have precedence. The options list
// goroutines that may remain.
func Main(m *testing.M, checks int, left ...goleak.Option) {
	defaults := map[string]string{"rapid.checks": strconv.Itoa(checks), "rapid.nofailfile": "true"}
	if !IsLong() {
		defaults["rapid.seed"] = "1"
	}
	for name, value := range defaults {
		f := flag.Lookup(name)
		_ = f.Value.Set(value)
		f.DefValue = value // the value that means "not given" to Check
	}
	FindLeaks(m, left...)
}

// FindLeaks is a TestMain that finds leaked goroutines. They have minutes to end: the kernel may close a watch late.
func FindLeaks(m *testing.M, left ...goleak.Option) {
	code := m.Run()
	for end := time.Now().Add(5 * time.Minute); code == 0 && time.Now().Before(end); {
		if goleak.Find(left...) == nil { // which waits for a moment
			break
		}
	}
	goleak.VerifyTestMain(ran(code), left...)
}

// ran is the exit code of tests that have run.
type ran int

// Run implements goleak.TestingM.
func (r ran) Run() int { return int(r) }

// Check is rapid.Check with short random cases in the short form, unless the flag -rapid.checks is given. It sets that
// flag during the call, so tests that call it must not be parallel.
func Check(t *testing.T, short int, property func(*rapid.T)) {
	t.Helper()
	checks := flag.Lookup("rapid.checks")
	if checks.Value.String() == checks.DefValue && !IsLong() {
		_ = checks.Value.Set(strconv.Itoa(short))
		defer checks.Value.Set(checks.DefValue) //nolint:errcheck // it was set before
	}
	rapid.Check(t, property)
}
