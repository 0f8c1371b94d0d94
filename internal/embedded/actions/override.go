package actions

import (
	"fmt"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
)

// compileOverride returns the limit in an entry of rate_limits, or the zero value if it has none.
func compileOverride(at string, l *routev3.RateLimit_Override) (own decide.OwnLimit, err error) {
	switch s := l.GetOverrideSpecifier().(type) {
	case nil:
		return own, nil
	case *routev3.RateLimit_Override_RateLimit:
		unit, ok := descriptors.ParseUnit(s.RateLimit.GetUnit().String())
		if !ok {
			return own, fmt.Errorf("%s.rate_limit.unit: must be SECOND, MINUTE, HOUR, DAY, MONTH or YEAR, got %s",
				at, s.RateLimit.GetUnit())
		}
		return decide.OwnLimit{Requests: s.RateLimit.GetRequestsPerUnit(), Window: unit.Duration()}, nil
	default:
		return own, refuse(at, fieldOf(s), "Envoy gives modules no nested values; use rate_limit")
	}
}
