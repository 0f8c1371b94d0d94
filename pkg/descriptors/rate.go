package descriptors

import (
	"fmt"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// String returns the limit for people: "funnel: 10 per 1s, burst 20".
func (l *Limit) String() string {
	return l.Policy.Algorithm().String() + ": " + FormatRate(l.Policy)
}

// FormatRate writes how much a policy lets pass: "10 per 1s, burst 20", or "3 at once".
func FormatRate(p *limiter.Policy) string {
	if p.Algorithm().CountsInFlight() {
		return fmt.Sprintf("%d at once", p.Limit())
	}
	text := fmt.Sprintf("%d per %s", p.Limit(), FormatDuration(p.Window()))
	switch {
	case p.Params().TimeZone != nil:
		text += ", calendar of " + p.Params().TimeZone.String()
	case p.Algorithm().Has("burst"):
		text += fmt.Sprintf(", burst %d", p.Capacity())
	case p.Params().WarmUp > 0:
		text += ", warms up in " + FormatDuration(p.Params().WarmUp)
	}
	if wait := p.MaxWait(); wait > 0 {
		text += ", waits up to " + FormatDuration(wait)
	}
	return text
}
