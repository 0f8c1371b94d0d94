package rulefile

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/step"
	"github.com/weir-ratelimit/weir/internal/words"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

var unitNames = []string{"second", "minute", "hour", "day", "week", "month", "year"}

// parseUnit returns the unit of that name in upper or lower case.
func parseUnit(name string) (descriptors.Unit, error) {
	if u, ok := descriptors.ParseUnit(name); ok {
		return u, nil
	}
	return descriptors.UnitUnknown, fmt.Errorf("%q is not a unit of time: use %s, or a window such as window: 90s%s",
		name, strings.Join(unitNames, ", "), didYouMean(name, unitNames))
}

// didYouMean returns a hint at the most similar known text, empty if none is similar.
func didYouMean(text string, known []string) string {
	if near := words.Nearest(strings.ToLower(text), known); near != "" {
		return "; did you mean " + near + "?"
	}
	return ""
}

// parseDuration parses a duration, which must have a unit and no sign.
func parseDuration(text string) (time.Duration, error) {
	d, err := words.ParseDuration(text)
	if err != nil || text == "0" || strings.IndexAny(text, "+-") == 0 {
		return 0, fmt.Errorf("%q is not a duration: %s", text, words.DurationForm)
	}
	return d, nil
}

// parseDecimal parses a number with decimals, such as 3 or 2.5, in the parameter's own unit.
func parseDecimal(p *step.Parameter[limiter.Params], text string) (int64, error) {
	unit := max(p.Step, 1)
	least, most, decimals := max(p.Least, unit), p.Most, math.Log10(float64(p.Scale/unit))
	v, err := strconv.ParseFloat(text, 64)
	v *= float64(p.Scale / unit)
	if in := int64(math.Round(v)) * unit; err == nil && in >= least && in <= most && math.Abs(v-math.Round(v)) < 1e-6 {
		return in, nil
	}
	return 0, fmt.Errorf("%q is not a number from %v to %v with at most %v decimals: write it like 3 or 2.5",
		text, p.Shown(least), p.Shown(most), decimals)
}

// integer reads a whole number between lo and hi. For any other value it reports an error and returns 0.
func (r *reader) integer(n *yaml.Node, lo, hi int64) (v int64) {
	r.scalar(n, "a whole number", func(n *yaml.Node) {
		// Base 0 reads 1_000, 0x10 and 0o17 as YAML does.
		parsed, err := strconv.ParseInt(n.Value, 0, 64)
		if n.Tag != "!!int" || err != nil || parsed < lo || parsed > hi {
			r.Errorf(r.at(n),
				"%s must be a whole number between %d and %d, got %s%s", r.field, lo, hi, kind(n), numberHint(n, r.field, lo, hi))
			return
		}
		v = parsed
	})
	return v
}

// numberHint guesses what was meant instead of a whole number within the bounds. It returns "" if it has no guess.
func numberHint(n *yaml.Node, field string, lo, hi int64) string {
	v, err := strconv.ParseInt(n.Value, 10, 64)
	switch {
	case v == -1 && field == "requests_per_unit":
		return "; write unlimited: true for no limit"
	case err != nil || v < lo || v > hi:
		return ""
	case n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0:
		return "; remove the quotes"
	default: // such as 089
		return fmt.Sprintf("; write %d", v)
	}
}
