package actions

import (
	"fmt"
	"math"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
)

// override is the limit that an entry of rate_limits brings along: a fixed one, or what the metadata hold under keys.
type override struct {
	fixed          decide.OwnLimit
	requests, unit *MetadataKey
}

// units are the units that a limit may have, by Envoy's names.
var units = map[string]descriptors.Unit{
	"SECOND": descriptors.Second, "MINUTE": descriptors.Minute, "HOUR": descriptors.Hour,
	"DAY": descriptors.Day, "MONTH": descriptors.Month, "YEAR": descriptors.Year,
}

func (p *Phase) compileOverride(at string, l *routev3.RateLimit_Override) (*override, error) {
	switch s := l.GetOverrideSpecifier().(type) {
	case nil:
		return nil, nil //nolint:nilnil // there is none
	case *routev3.RateLimit_Override_DynamicMetadata_:
		at, k := at+".dynamic_metadata", s.DynamicMetadata.GetMetadataKey()
		requests, err := p.metadataKey(at, DynamicMetadata, k, "requests_per_unit")
		if err != nil {
			return nil, err
		}
		requests.MayBeNumber = true
		unit, err := p.metadataKey(at, DynamicMetadata, k, "unit")
		return &override{requests: requests, unit: unit}, err
	case *routev3.RateLimit_Override_RateLimit:
		unit, ok := units[s.RateLimit.GetUnit().String()]
		if !ok {
			return nil, fmt.Errorf("%s.rate_limit.unit: must be SECOND, MINUTE, HOUR, DAY, MONTH or YEAR, got %s",
				at, s.RateLimit.GetUnit())
		}
		return &override{fixed: decide.OwnLimit{
			Requests: s.RateLimit.GetRequestsPerUnit(), Window: unit.Duration(),
		}}, nil
	default:
		return nil, refuse(at, fieldOf(s), "Weir does not know this override; use rate_limit")
	}
}

// fill sets the descriptor's own limit. Metadata that is no limit is none.
func (o *override) fill(req *Request, d *Descriptor) {
	if o.requests == nil {
		d.Limit = o.fixed
		return
	}
	unit := req.valueOf(o.unit)
	window := units[string(unit.Text)].Duration()
	requests := req.valueOf(o.requests)
	if window > 0 && requests.IsNumber && requests.Number >= 0 && requests.Number <= math.MaxUint32 {
		d.Limit = decide.OwnLimit{Requests: uint32(requests.Number), Window: window}
	}
}
