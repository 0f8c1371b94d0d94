package rls

import (
	"math"
	"strconv"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
)

// These functions append the fields of a RateLimitResponse in the order of their numbers and omit zero values. The
// result is the same bytes as from google.golang.org/protobuf.

func appendStatus(dst []byte, st *decide.Status) []byte {
	dst, start := begin(dst, 2)
	dst = appendNumber(dst, 1, code(st.Over))
	remaining := decide.Saturate(st.Remaining)
	switch {
	case st.Limit != nil && !st.HasReset: // no counter decided: without current_limit, Envoy sends no headers
		remaining = 0
	case st.Limit != nil:
		dst = appendLimit(dst, st.Limit)
	case st.Unlimited:
		remaining = math.MaxUint32
	}
	dst = appendNumber(dst, 3, remaining)
	if st.HasReset {
		var reset int
		dst, reset = begin(dst, 4)
		dst = end(appendNumber(dst, 1, decide.CeilSeconds(st.Reset)), reset)
	}
	return end(dst, start)
}

var wireUnits = [...]pb.RateLimitResponse_RateLimit_Unit{
	descriptors.UnitUnknown: pb.RateLimitResponse_RateLimit_UNKNOWN,
	descriptors.Second:      pb.RateLimitResponse_RateLimit_SECOND,
	descriptors.Minute:      pb.RateLimitResponse_RateLimit_MINUTE,
	descriptors.Hour:        pb.RateLimitResponse_RateLimit_HOUR,
	descriptors.Day:         pb.RateLimitResponse_RateLimit_DAY,
	descriptors.Week:        pb.RateLimitResponse_RateLimit_WEEK,
	descriptors.Month:       pb.RateLimitResponse_RateLimit_MONTH,
	descriptors.Year:        pb.RateLimitResponse_RateLimit_YEAR,
}

func appendLimit(dst []byte, l *descriptors.Limit) []byte {
	dst, start := begin(dst, 2)
	dst = appendNumber(dst, 1, decide.Saturate(l.Policy.Limit()))
	dst = appendNumber(dst, 2, wireUnits[l.Unit])
	dst = appendText(dst, 3, l.Name)
	if l.UnitMultiplier > 1 {
		var multiplier int
		dst, multiplier = begin(dst, 4)
		dst = end(appendNumber(dst, 1, l.UnitMultiplier), multiplier)
	}
	return end(dst, start)
}

func appendHeader(dst []byte, h decide.Header) []byte {
	dst, start := begin(dst, 3)
	dst = appendText(dst, 1, h.Name)
	if !h.IsNumber {
		return end(appendText(dst, 2, h.Text), start)
	}
	dst, number := begin(dst, 2)
	dst = end(strconv.AppendInt(dst, h.Number, 10), number)
	return end(dst, start)
}

func code(over bool) pb.RateLimitResponse_Code {
	if over {
		return pb.RateLimitResponse_OVER_LIMIT
	}
	return pb.RateLimitResponse_OK
}

func appendNumber[N ~int32 | ~int64 | ~uint32](dst []byte, field protowire.Number, n N) []byte {
	if n == 0 {
		return dst
	}
	return protowire.AppendVarint(protowire.AppendTag(dst, field, protowire.VarintType), uint64(n))
}

func appendText(dst []byte, field protowire.Number, text string) []byte {
	if text == "" {
		return dst
	}
	return protowire.AppendString(protowire.AppendTag(dst, field, protowire.BytesType), text)
}

// begin begins a nested message and reserves one byte for its length. start is the message's index in dst, for end.
func begin(dst []byte, field protowire.Number) (_ []byte, start int) {
	dst = append(protowire.AppendTag(dst, field, protowire.BytesType), 0)
	return dst, len(dst)
}

// end writes the length of the message that begins at start. If the length needs more bytes, end moves the message.
func end(dst []byte, start int) []byte {
	size := uint64(len(dst[start:]))
	if more := protowire.SizeVarint(size) - 1; more > 0 {
		dst = append(dst, make([]byte, more)...)
		copy(dst[start+more:], dst[start:])
	}
	protowire.AppendVarint(dst[:start-1], size)
	return dst
}
