package rls

import (
	"time"

	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// translate checks the request and takes its descriptors over. The error is InvalidArgument and names the
// field.
func (sc *scratch) translate(o *Options, req *pb.RateLimitRequest) error {
	ds := req.GetDescriptors()
	switch {
	case req.GetDomain() == "":
		return invalid("domain: must not be empty; set the domain of Envoy's rate limit filter")
	case len(ds) == 0:
		return invalid("descriptors: must not be empty; send at least one descriptor")
	case len(ds) > o.MaxDescriptors:
		return invalid("descriptors: must be at most %d, got %d", o.MaxDescriptors, len(ds))
	}
	for i, d := range ds {
		n, err := hits(i, d, req.GetHitsAddend())
		if err != nil {
			return err
		}
		window, err := overrideWindow(i, d.GetLimit())
		if err != nil {
			return err
		}
		from := len(sc.entries)
		if err := sc.translateEntries(o, i, d.GetEntries()); err != nil {
			return err
		}
		sc.questions = append(sc.questions, question{from: from, to: len(sc.entries), n: n, window: window})
	}
	return nil
}

func (sc *scratch) translateEntries(o *Options, i int, entries []*commonpb.RateLimitDescriptor_Entry) error {
	if len(entries) == 0 {
		return invalid("descriptors[%d].entries: must not be empty; send at least one key and value", i)
	}
	if len(entries) > o.MaxEntries {
		return invalid("descriptors[%d].entries: must be at most %d, got %d", i, o.MaxEntries, len(entries))
	}
	for j, e := range entries {
		key, value := e.GetKey(), e.GetValue()
		switch {
		case key == "":
			return invalid("descriptors[%d].entries[%d].key: must not be empty", i, j)
		case len(key) > o.MaxEntryBytes:
			return invalid("descriptors[%d].entries[%d].key: must be at most %d bytes, got %d", i, j, o.MaxEntryBytes, len(key))
		case len(value) > o.MaxEntryBytes:
			return invalid("descriptors[%d].entries[%d].value: must be at most %d bytes, got %d", i, j, o.MaxEntryBytes, len(value))
		}
		sc.entries = append(sc.entries, descriptors.Entry{Key: key, Value: value})
	}
	return nil
}

// hits is what the descriptor costs: its own hits_addend if present (0 only looks), else the request's, where
// 0 stands for 1. is_negative_hits gives that back; a present 0 gives nothing back and looks.
func hits(i int, d *commonpb.RateLimitDescriptor, ofRequest uint32) (int64, error) {
	n := uint64(max(ofRequest, 1))
	if own := d.GetHitsAddend(); own != nil {
		n = own.GetValue()
	}
	if n > limiter.MaxHits {
		return 0, invalid("descriptors[%d].hits_addend: must be at most %d, got %d", i, uint64(limiter.MaxHits), n)
	}
	if d.GetIsNegativeHits() {
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

// overrideWindow is the window of the limit that descriptor i brings along, 0 if that is nil.
func overrideWindow(i int, own *commonpb.RateLimitDescriptor_RateLimitOverride) (time.Duration, error) {
	if own == nil {
		return 0, nil
	}
	u := own.GetUnit()
	if u <= typepb.RateLimitUnit_UNKNOWN || int(u) >= len(units) {
		return 0, invalid("descriptors[%d].limit.unit: %s is not known; use SECOND, MINUTE, HOUR, DAY, MONTH or YEAR", i, u)
	}
	unit, multiplier := units[u].Duration(), int64(1)
	if m := own.GetUnitMultiplier(); m != nil {
		multiplier = int64(m.GetValue())
	}
	if most := int64(limiter.MaxWindow / unit); multiplier < 1 || multiplier > most {
		return 0, invalid("descriptors[%d].limit.unit_multiplier: must be between 1 and %d for unit %s, got %d", i, most, u, multiplier)
	}
	return time.Duration(multiplier) * unit, nil
}

func invalid(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}
