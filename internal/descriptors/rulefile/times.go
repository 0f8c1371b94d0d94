package rulefile

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/internal/words"
)

// parseUnit returns the unit of that name, in any case.
func parseUnit(name string) (descriptors.Unit, error) {
	for u := descriptors.Second; u <= descriptors.Year; u++ {
		if strings.EqualFold(name, u.String()) {
			return u, nil
		}
	}
	names := []string{"second", "minute", "hour", "day", "week", "month", "year"}
	return descriptors.UnitUnknown, fmt.Errorf("%q is not a unit of time: use %s, or a window such as window: 90s%s",
		name, strings.Join(names, ", "), didYouMean(name, names))
}

// didYouMean names the text that is nearest, empty if none is near.
func didYouMean(text string, known []string) string {
	if near := words.Nearest(strings.ToLower(text), known); near != "" {
		return "; did you mean " + near + "?"
	}
	return ""
}

// parseDuration reads a duration with a unit and without a sign.
func parseDuration(text string) (time.Duration, error) {
	d, ok := durationOf(text)
	if !ok {
		return 0, fmt.Errorf("%q is not a duration: %s", text, words.DurationForm)
	}
	return d, nil
}

func durationOf(text string) (d time.Duration, ok bool) {
	if strings.HasPrefix(text, "+") || strings.HasPrefix(text, "-") || text == "0" {
		return 0, false
	}
	d, err := words.ParseDuration(text)
	return d, err == nil
}

// parseSeconds reads a number of seconds, such as 2 or 0.5.
func parseSeconds(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text + "s")
	if err != nil {
		return 0, fmt.Errorf("%q is not a number of seconds: write it like 2 or 0.5", text)
	}
	return d, nil
}

// parseFactor reads a number from 1.01 to 100, such as 3 or 2.5, in hundredths.
func parseFactor(text string) (int64, error) {
	const most = step.MaxColdFactor
	v, err := strconv.ParseFloat(text, 64)
	hundredths := math.Round(v * 100)
	if err != nil || !(hundredths > 100 && hundredths <= most) || math.Abs(v*100-hundredths) > 1e-6 {
		return 0, fmt.Errorf("%q is not a number from 1.01 to %d with at most two decimals: write it like 3 or 2.5",
			text, most/100)
	}
	return int64(hundredths), nil
}

// integer reads a whole number between lo and hi; ok is false, and the reason reported, if it is none.
func (r *reader) integer(n *yaml.Node, lo, hi int64) (v int64, ok bool) {
	r.scalar(n, "a whole number", func(n *yaml.Node) {
		// Base 0 reads 1_000, 0x10 and 0o17 as YAML does.
		parsed, err := strconv.ParseInt(n.Value, 0, 64)
		if n.Tag != "!!int" || err != nil || parsed < lo || parsed > hi {
			r.Errorf(r.at(n),
				"%s must be a whole number between %d and %d, got %s%s", r.field, lo, hi, kind(n), numberHint(n, r.field, lo, hi))
			return
		}
		v, ok = parsed, true
		if n.Value[0] == '0' && isSmallNumber(n.Value) && decimal(n.Value) != strconv.FormatInt(parsed, 10) {
			r.Warnf(descriptors.WarnOctal, r.at(n),
				"%s: %s is %d, as YAML takes a number that begins with 0 for an octal one; write %s or %d",
				r.field, n.Value, parsed, decimal(n.Value), parsed)
		}
	})
	return v, ok
}

// decimal is a number without the zeros that it begins with.
func decimal(text string) string { return cmp.Or(strings.TrimLeft(text, "0"), "0") }

// numberHint says what was probably meant instead of a whole number within the bounds, empty if that is not known.
func numberHint(n *yaml.Node, field string, lo, hi int64) string {
	v, err := strconv.ParseInt(n.Value, 10, 64)
	switch {
	case v == -1 && field == "requests_per_unit":
		return "; write unlimited: true for no limit"
	case err != nil || v < lo || v > hi:
		return ""
	case n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0:
		return "; remove the quotes"
	default: // 089
		return fmt.Sprintf("; write %d", v)
	}
}

func isSmallNumber(text string) bool {
	for i := range len(text) {
		if text[i] < '0' || text[i] > '9' {
			return false
		}
	}
	return len(text) <= 18
}
