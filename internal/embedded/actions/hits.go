package actions

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
)

// maxHits is Envoy's maximum of hits_addend.
const maxHits = 1_000_000_000

// hitsAddend is the hits_addend of one entry of rate_limits.
type hitsAddend struct {
	number     int64
	format     *command // nil if number applies
	isNegative bool
}

func (p *Phase) compileHits(at string, h *routev3.RateLimit_HitsAddend) (*hitsAddend, error) {
	if h == nil {
		return nil, nil //nolint:nilnil // there is no hits_addend
	}
	hits := &hitsAddend{number: int64(min(h.GetNumber().GetValue(), maxHits)), isNegative: h.GetIsNegativeHits()}
	switch {
	case (h.GetNumber() == nil) == (h.GetFormat() == ""):
		return nil, fmt.Errorf("%s: must have either a number or a format", at)
	case h.GetNumber() != nil:
		return hits, nil
	}
	var err error
	hits.format, err = p.compileFormat(at+".format", h.GetFormat())
	return hits, err
}

// fill sets the descriptor's cost. It returns false if the cost is invalid, because Envoy then sends no descriptor.
func (h *hitsAddend) fill(req *Request, d *Descriptor) bool {
	n := h.number
	if h.format != nil {
		var ok bool
		if n, ok = h.format.hits(req); !ok {
			return false
		}
	}
	if h.isNegative {
		n = -n
	}
	d.HitsAddend, d.HasHitsAddend = n, true
	return true
}

func (f *command) hits(req *Request) (int64, bool) {
	var value []byte
	if f.metadata == nil {
		var ok bool
		if value, ok = f.headerValue(req); !ok {
			return 0, false
		}
	} else {
		v := req.valueOf(f.metadata)
		if v.IsNumber {
			return wholeHits(v.Number)
		}
		value = f.cut(v.Text)
	}
	n, err := parseNumber(string(value))
	if err != nil {
		return 0, false
	}
	return wholeHits(n)
}

// parseNumber parses a number like C's strtod: unlike in Go, a hexadecimal number needs no exponent and _ is invalid.
func parseNumber(s string) (float64, error) {
	s = strings.Trim(s, asciiSpace)
	if strings.Contains(s, "_") {
		return 0, strconv.ErrSyntax
	}
	if strings.ContainsAny(s, "xX") && !strings.ContainsAny(s, "pP") {
		s += "p0"
	}
	return strconv.ParseFloat(s, 64)
}

// wholeHits truncates n to an integer. It returns false if n is not a valid hits_addend.
func wholeHits(n float64) (int64, bool) {
	if math.IsNaN(n) || n < 0 || n > maxHits {
		return 0, false
	}
	return int64(n), true
}
