package actions

import (
	"fmt"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
)

// units are the units of a limit by Envoy's names.
var units = map[string]descriptors.Unit{
	"SECOND": descriptors.Second, "MINUTE": descriptors.Minute, "HOUR": descriptors.Hour,
	"DAY": descriptors.Day, "MONTH": descriptors.Month, "YEAR": descriptors.Year,
}

// compileOverride returns the limit in an entry of rate_limits, or the zero value if it has none.
func compileOverride(at string, l *routev3.RateLimit_Override) (own decide.OwnLimit, err error) {
	switch s := l.GetOverrideSpecifier().(type) {
	case nil:
		return own, nil
	case *routev3.RateLimit_Override_RateLimit:
		unit, ok := units[s.RateLimit.GetUnit().String()]
		if !ok {
			return own, fmt.Errorf("%s.rate_limit.unit: must be SECOND, MINUTE, HOUR, DAY, MONTH or YEAR, got %s",
				at, s.RateLimit.GetUnit())
		}
		return decide.OwnLimit{Requests: s.RateLimit.GetRequestsPerUnit(), Window: unit.Duration()}, nil
	default:
		return own, refuse(at, fieldOf(s), "Envoy gives modules no nested values; use rate_limit")
	}
}
