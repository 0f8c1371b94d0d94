package words

import (
	"strings"
	"testing"
	"time"
)

func TestParseDuration(t *testing.T) {
	const day = 24 * time.Hour
	for text, want := range map[string]time.Duration{
		"7d": 7 * day, "1w": 7 * day, "90m": 90 * time.Minute, "1d12h": 36 * time.Hour, "1.5d": 36 * time.Hour,
		"2w1d": 15 * day, "-1d": -day, "-1w1s": -7*day - time.Second, "0": 0, "1h30m": 90 * time.Minute, "15ms": 15e6,
		".5d": 12 * time.Hour,
	} {
		if got, err := ParseDuration(text); err != nil || got != want {
			t.Errorf("%q: %s, %v; want %s", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", "d", "7", "1 day", "1day", "1dd", "1.2.3d", "1y", "d1", "7D", "1d-1h", "106752d", "99999999999999w",
		strings.Repeat("1h", 51), strings.Repeat("1w", 1<<20),
	} {
		got, err := ParseDuration(text)
		if err == nil || len(err.Error()) > 200 || !strings.Contains(err.Error(), DurationForm) {
			t.Errorf("%.20q: %s, %v; want an error", text, got, err)
		}
	}
}
