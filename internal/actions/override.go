package actions

import (
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
)

// override is the limit that an entry of rate_limits brings along.
type override struct{}

func (p *Plan) compileOverride(at string, o *routev3.RateLimit_Override) (*override, error) {
	if o == nil {
		return nil, nil //nolint:nilnil // there is none
	}
	return nil, refuse(at, "an override", "write the limit into Weir's rules")
}

func (o *override) fill(Request, *Descriptor) {}
