package rls

import (
	"math"
	"time"

	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/step"
)

// maxAddend is the largest hits_addend: the maximum of the request's own 32-bit field.
const maxAddend = math.MaxUint32

// cost returns the cost of descriptor i: its own hits_addend if present (0 peeks), else the request's, where 0 means 1.
// With is_negative_hits, the cost is negative and refunds; a hits_addend of 0 still peeks. The cost at the end of a
// request is at most maxAddend, which is above the capacity of every rule.
func (d *wireDescriptor) cost(i int, ofRequest uint32, isEnd bool) (int64, error) {
	n := uint64(max(ofRequest, 1))
	if d.addend.present {
		n = d.addend.value
	}
	if n > maxAddend && !isEnd {
		return 0, invalid("descriptors[%d].hits_addend: must be at most %d, got %d", i, uint64(maxAddend), n)
	}
	cost := int64(min(n, maxAddend))
	if d.isNegative {
		return -cost, nil
	}
	return cost, nil
}

var units = [...]descriptors.Unit{
	typepb.RateLimitUnit_SECOND: descriptors.Second,
	typepb.RateLimitUnit_MINUTE: descriptors.Minute,
	typepb.RateLimitUnit_HOUR:   descriptors.Hour,
	typepb.RateLimitUnit_DAY:    descriptors.Day,
	typepb.RateLimitUnit_MONTH:  descriptors.Month,
	typepb.RateLimitUnit_YEAR:   descriptors.Year,
}

// window returns the window of the limit that the request carries for descriptor i, or 0 if there is no such limit.
func (o *override) window(i int) (time.Duration, error) {
	if !o.present {
		return 0, nil
	}
	if o.unit <= typepb.RateLimitUnit_UNKNOWN || int(o.unit) >= len(units) {
		return 0, invalid("descriptors[%d].limit.unit: %s is not known; use SECOND, MINUTE, HOUR, DAY, MONTH or YEAR",
			i, o.unit)
	}
	unit, multiplier := units[o.unit].Duration(), int64(1)
	if o.multiplier.present {
		multiplier = int64(o.multiplier.value)
	}
	if most := int64(step.MaxWindow / unit); multiplier < 1 || multiplier > most {
		return 0, invalid("descriptors[%d].limit.unit_multiplier: must be between 1 and %d for unit %s, got %d",
			i, most, o.unit, multiplier)
	}
	return time.Duration(multiplier) * unit, nil
}

func invalid(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}
