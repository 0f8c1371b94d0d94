package decide

import (
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// A token is text of anyone who can call Weir. Only the first item of a counter counts, and only in the form that
// Verdict.Start writes.
func TestHeld(t *testing.T) {
	own := inTokens("counter")
	const at = "1800000000000000"
	in2112 := strconv.Itoa(4_481_000_000_000_000)
	for token, want := range map[string]int64{
		"": 0, "none": 0, own: 0, own + "7": 0, own + "7.": 0, own + "." + at: 0,
		own + "7." + at:     7,
		own + "0." + at:     0,
		own + "-7." + at:    0,
		own + "+7." + at:    0,
		own + "7e1." + at:   0,
		own + "7.1.2":       0,
		own + "7.0":         0,
		own + "\x007." + at: 0, own + "\xff7." + at: 0, own + "?7." + at: 0, own + "7.\t" + at: 0, own + "7." + at + "?": 0,
		own + "7." + in2112:                                                     7,
		own + "7." + strconv.Itoa(step.Horizon-1):                               7,
		own + "7." + strconv.Itoa(step.Horizon):                                 0,
		own + strconv.Itoa(limiter.MaxHits) + "." + at:                          limiter.MaxHits,
		own + strconv.Itoa(limiter.MaxHits+1) + "." + at:                        0,
		own + strconv.Itoa(math.MaxInt64) + "9." + at:                           0,
		own + "7." + at + "0000":                                                0,
		inTokens("other") + "9." + at + " " + own + "7." + at:                   7,
		own + "7." + at + " " + own + "9." + at:                                 7, // the first counts
		own + "x " + own + "9." + at:                                            0,
		inTokens("other") + "9." + own + "7." + at:                              0, // an item begins with the hash
		strings.ToUpper(own) + "7." + at:                                        0,
		strings.Repeat(" ", maxToken-len(own)-len("7."+at)) + own + "7." + at:   7,
		strings.Repeat(" ", maxToken) + own + "7." + at:                         0, // too long
		strings.Repeat("x ", 40) + own + "7." + at:                              7,
		strings.Repeat(inTokens("other")+"9."+at+" ", 10_000) + own + "7." + at: 0,
	} {
		n, when, ok := held(token, own)
		if ok != (want > 0) || ok && (n != want || when < 1) {
			t.Errorf("%.80q: %d hits at %d, %t; want %d", token, n, when, ok, want)
		}
	}
}

func FuzzHeld(f *testing.F) {
	own := inTokens("counter")
	f.Add(int64(7), int64(1_800_000_000_000_000), "x ", " y")
	f.Fuzz(func(t *testing.T, n, at int64, before, after string) {
		if got, when, ok := held(before, own); ok && (got < 1 || got > limiter.MaxHits || when < 1 || when >= step.Horizon) {
			t.Errorf("%q: %d hits at %d", before, got, when)
		}
		n, at = 1+n&(limiter.MaxHits-1), 1+at&(1<<50-1)
		h := limiter.Hit{Key: "counter", N: n}
		token := strings.ReplaceAll(before, own, "") + " " + string(appendItem(nil, &h, at)) + after
		if got, when, ok := held(token, own); len(token) <= maxToken && (!ok || got != n || when != at) {
			t.Errorf("%q: %d hits at %d, %t; want %d at %d", token, got, when, ok, n, at)
		}
	})
}

// Clients write hints into their requests.
func TestHinted(t *testing.T) {
	for hint, want := range map[string]int64{
		"": 0, "x": 0, "none": 0, "NaN": 0, "Inf": 0, "0x10": 0, "1_000": 0, " 5": 0, "1 2": 0, "[1]": 0, "-": 0, "e": 0,
		"-5": 0, "-1e400": 0, "0": 0, "1000": 1000, "+5": 5, "1.2": 2, "1e3": 1000, "1e12": 1e12,
		"1e400": limiter.MaxHits, "99999999999999999999": limiter.MaxHits, "1" + strings.Repeat("0", maxHint): 0,
		"\x00": 0, "\xff": 0, "5\n": 0,
	} {
		if got := hinted(hint); got != want {
			t.Errorf("%q: %d, want %d", hint, got, want)
		}
	}
}
