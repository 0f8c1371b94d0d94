package rls

import (
	"time"

	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// translate checks what decode has taken over, and finds the cost of each descriptor and the window of the limit that
// it brings along. The error is InvalidArgument and names the field.
func (sc *scratch) translate() error {
	switch {
	case sc.domain == "":
		return invalid("domain: must not be empty; set the domain of Envoy's rate limit filter")
	case sc.descriptors == 0:
		return invalid("descriptors: must not be empty; send at least one descriptor")
	case sc.descriptors > sc.o.MaxDescriptors:
		return invalid("descriptors: must be at most %d, got %d", sc.o.MaxDescriptors, sc.descriptors)
	}
	for i := range sc.questions {
		q := &sc.questions[i]
		var err error
		if q.n, err = q.cost(i, sc.addend); err != nil {
			return err
		}
		if q.window, err = q.own.window(i); err != nil {
			return err
		}
		if err := sc.checkEntries(i, q); err != nil {
			return err
		}
	}
	return nil
}

func (sc *scratch) checkEntries(i int, q *question) error {
	if q.entries == 0 {
		return invalid("descriptors[%d].entries: must not be empty; send at least one key and value", i)
	}
	if q.entries > sc.o.MaxEntries {
		return invalid("descriptors[%d].entries: must be at most %d, got %d", i, sc.o.MaxEntries, q.entries)
	}
	most := sc.o.MaxEntryBytes
	for j, e := range sc.entries[q.from:q.to] {
		switch {
		case e.Key == "":
			return invalid("descriptors[%d].entries[%d].key: must not be empty", i, j)
		case len(e.Key) > most:
			return invalid("descriptors[%d].entries[%d].key: must be at most %d bytes, got %d", i, j, most, len(e.Key))
		case len(e.Value) > most:
			return invalid("descriptors[%d].entries[%d].value: must be at most %d bytes, got %d", i, j, most, len(e.Value))
		}
	}
	return nil
}

// cost is what descriptor i costs: its own hits_addend if present (0 only looks), else the request's, where 0
// stands for 1. is_negative_hits gives that back; a present 0 gives nothing back and looks.
func (q *question) cost(i int, ofRequest uint32) (int64, error) {
	n := uint64(max(ofRequest, 1))
	if q.addend.present {
		n = q.addend.value
	}
	if n > limiter.MaxHits {
		return 0, invalid("descriptors[%d].hits_addend: must be at most %d, got %d", i, uint64(limiter.MaxHits), n)
	}
	if q.negative {
		return -int64(n), nil
	}
	return int64(n), nil
}

// units are the units that a request's own limit may have.
var units = [...]descriptors.Unit{
	typepb.RateLimitUnit_SECOND: descriptors.Second,
	typepb.RateLimitUnit_MINUTE: descriptors.Minute,
	typepb.RateLimitUnit_HOUR:   descriptors.Hour,
	typepb.RateLimitUnit_DAY:    descriptors.Day,
	typepb.RateLimitUnit_MONTH:  descriptors.Month,
	typepb.RateLimitUnit_YEAR:   descriptors.Year,
}

// window is that of the limit that descriptor i brings along, 0 if it brings none.
func (o *override) window(i int) (time.Duration, error) {
	if !o.present {
		return 0, nil
	}
	if o.unit <= typepb.RateLimitUnit_UNKNOWN || int(o.unit) >= len(units) {
		return 0, invalid("descriptors[%d].limit.unit: %s is not known; use SECOND, MINUTE, HOUR, DAY, MONTH or YEAR", i, o.unit)
	}
	unit, multiplier := units[o.unit].Duration(), int64(1)
	if o.multiplier.present {
		multiplier = int64(o.multiplier.value)
	}
	if most := int64(limiter.MaxWindow / unit); multiplier < 1 || multiplier > most {
		return 0, invalid("descriptors[%d].limit.unit_multiplier: must be between 1 and %d for unit %s, got %d",
			i, most, o.unit, multiplier)
	}
	return time.Duration(multiplier) * unit, nil
}

func invalid(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}
