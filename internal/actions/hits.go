package actions

import (
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
)

// maxHits is the largest hits_addend: Envoy refuses any above.
const maxHits = 1_000_000_000

// hitsAddend is the hits_addend of one entry of rate_limits.
type hitsAddend struct {
	number     int64
	isNegative bool
}

func (p *Plan) compileHits(at string, h *routev3.RateLimit_HitsAddend) (*hitsAddend, error) {
	switch {
	case h == nil:
		return nil, nil //nolint:nilnil // there is none
	case h.GetFormat() != "":
		return nil, refuse(at+".format", "a format", "Weir knows a fixed number only")
	}
	return &hitsAddend{number: int64(min(h.GetNumber().GetValue(), maxHits)), isNegative: h.GetIsNegativeHits()}, nil
}

// fill sets the descriptor's cost. It reports false if the request has none, and so no descriptor.
func (h *hitsAddend) fill(_ Request, d *Descriptor) bool {
	d.HitsAddend, d.HasHitsAddend = h.number, true
	if h.isNegative {
		d.HitsAddend = -d.HitsAddend
	}
	return true
}
