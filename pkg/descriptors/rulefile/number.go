package rulefile

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
)

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

// factors are what people write behind a number.
var factors = map[byte]int64{'k': 1_000, 'K': 1_000, 'm': 1_000_000, 'M': 1_000_000}

// numberHint says which whole number within the bounds was probably meant, empty if that is not known.
func numberHint(n *yaml.Node, field string, lo, hi int64) string {
	text := strings.TrimSpace(n.Value)
	within := func(v int64, err error) bool { return err == nil && v >= lo && v <= hi }
	quoted := n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0
	if v, err := strconv.ParseInt(text, 10, 64); within(v, err) && isSmallNumber(text) {
		if quoted {
			return "; remove the quotes"
		}
		return fmt.Sprintf("; write %d", v) // 089
	}
	if text == "-1" && field == "requests_per_unit" {
		return "; write unlimited: true for no limit"
	}
	if number, per, ok := strings.Cut(text,
		"/"); ok && field == "requests_per_unit" && isSmallNumber(number) && number != "" {
		if u := unitMeant(per); u != descriptors.UnitUnknown {
			return fmt.Sprintf("; write requests_per_unit: %s and unit: %s", decimal(number), u)
		}
	}
	plain := strings.NewReplacer(",", "", "_", "", " ", "", "'", "").Replace(text)
	factor := int64(1)
	if end := len(plain) - 1; end > 0 && factors[plain[end]] > 0 {
		plain, factor = plain[:end], factors[plain[end]]
	}
	v, err := strconv.ParseFloat(plain, 64)
	if whole := int64(v) * factor; err == nil && v == math.Trunc(v) && within(whole, nil) && math.Abs(v) < 1e15 {
		return fmt.Sprintf("; write %d", whole)
	}
	return ""
}
