package rlqs

import (
	"errors"
	"fmt"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// maxElapsed bounds the time that a report may claim.
const maxElapsed = time.Hour

var errMalformed = errors.New("proto: the bytes are no RateLimitQuotaUsageReports")

// Codec is the codec of, except that it reads RateLimitQuotaUsageReports itself. protobuf's own refuses a whole message
// for one value that is not UTF-8, and such values come from headers: a client must not be able to end the quotas of
// all others.
func Codec(of encoding.CodecV2) encoding.CodecV2 { return codec{of} }

type codec struct{ encoding.CodecV2 }

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	to, ok := v.(*reports)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	buffer := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buffer.Free()
	return to.decode(buffer.ReadOnlyData())
}

// reports is a RateLimitQuotaUsageReports.
type reports struct {
	domain string
	usages []Usage
	wrong  error // what the message must not have, though it can be read
}

// field is one field of a message.
type field struct {
	number protowire.Number
	kind   protowire.Type
	value  uint64 // of a varint
	body   []byte // of a field with a length
}

// eachField calls do with each field of a message. As in protobuf, unknown fields are skipped by do, and the last of
// several values counts.
func eachField(wire []byte, do func(f field) error) error {
	for len(wire) > 0 {
		var f field
		var n int
		if f.number, f.kind, n = protowire.ConsumeTag(wire); n < 0 {
			return errMalformed
		}
		wire = wire[n:]
		switch f.kind {
		case protowire.VarintType:
			f.value, n = protowire.ConsumeVarint(wire)
		case protowire.BytesType:
			f.body, n = protowire.ConsumeBytes(wire)
		default:
			n = protowire.ConsumeFieldValue(f.number, f.kind, wire)
		}
		if n < 0 {
			return errMalformed
		}
		wire = wire[n:]
		if err := do(f); err != nil {
			return err
		}
	}
	return nil
}

// is reports whether the field is this one, of this type.
func (f *field) is(number protowire.Number, kind protowire.Type) bool {
	return f.number == number && f.kind == kind
}

// decode fills r, which it empties first. It keeps nothing of wire.
func (r *reports) decode(wire []byte) error {
	clear(r.usages)
	*r = reports{usages: r.usages[:0]}
	return eachField(wire, func(f field) error {
		switch {
		case f.is(1, protowire.BytesType):
			r.domain = string(f.body)
		case f.is(2, protowire.BytesType):
			return r.decodeUsage(f.body)
		}
		return nil
	})
}

func (r *reports) decodeUsage(wire []byte) error {
	var u Usage
	bucket := map[string]string{}
	err := eachField(wire, func(f field) (err error) {
		switch {
		case f.is(1, protowire.BytesType):
			return eachField(f.body, func(f field) error {
				if !f.is(1, protowire.BytesType) {
					return nil
				}
				return decodeEntry(f.body, bucket)
			})
		case f.is(2, protowire.BytesType):
			u.Elapsed, err = decodeDuration(f.body)
		case f.is(3, protowire.VarintType):
			u.Allowed = f.value
		case f.is(4, protowire.VarintType):
			u.Denied = f.value
		}
		return err
	})
	if err != nil {
		return err
	}
	if _, ok := bucket[""]; ok && r.wrong == nil {
		r.wrong = fmt.Errorf("bucket_quota_usages[%d].bucket_id.bucket: a key is empty; name each entry of the bucket",
			len(r.usages))
	}
	delete(bucket, "")
	u.ID = NewBucketID(bucket)
	r.usages = append(r.usages, u)
	return nil
}

func decodeEntry(wire []byte, to map[string]string) error {
	var key, value string
	err := eachField(wire, func(f field) error {
		switch {
		case f.is(1, protowire.BytesType):
			key = string(f.body)
		case f.is(2, protowire.BytesType):
			value = string(f.body)
		}
		return nil
	})
	to[key] = value
	return err
}

// decodeDuration reads a Duration. What no report can mean is cut to 0 or to maxElapsed.
func decodeDuration(wire []byte) (time.Duration, error) {
	var seconds, nanos int64
	err := eachField(wire, func(f field) error {
		switch {
		case f.is(1, protowire.VarintType):
			seconds = int64(f.value) //nolint:gosec // as protobuf does
		case f.is(2, protowire.VarintType):
			nanos = int64(int32(f.value)) //nolint:gosec // as protobuf does
		}
		return nil
	})
	seconds = min(max(seconds, -1), int64(maxElapsed/time.Second))
	return min(max(time.Duration(seconds)*time.Second+time.Duration(nanos), 0), maxElapsed), err
}

// responseOf is what Envoy gets of the assignments, in their order.
func responseOf(all []Assignment) *pb.RateLimitQuotaResponse {
	res := &pb.RateLimitQuotaResponse{BucketAction: make([]*pb.RateLimitQuotaResponse_BucketAction, 0, len(all))}
	for i := range all {
		if action := actionOf(&all[i]); action != nil {
			res.BucketAction = append(res.BucketAction, action)
		}
	}
	return res
}

// actionOf returns the assignment for Envoy, nil if its ID is not one that NewBucketID made. Envoy divides by whole
// seconds, so that a fill of less than one would limit nothing.
func actionOf(a *Assignment) *pb.RateLimitQuotaResponse_BucketAction {
	entries, err := a.ID.Entries()
	if err != nil {
		return nil
	}
	bucket := make(map[string]string, len(entries))
	for _, e := range entries {
		bucket[e.Key] = e.Value
	}
	action := &pb.RateLimitQuotaResponse_BucketAction{BucketId: &pb.BucketId{Bucket: bucket}}
	strategy := &typepb.RateLimitStrategy{}
	switch a.Strategy {
	case Abandon:
		action.BucketAction = &pb.RateLimitQuotaResponse_BucketAction_AbandonAction_{
			AbandonAction: &pb.RateLimitQuotaResponse_BucketAction_AbandonAction{},
		}
		return action
	case TokenBucket:
		strategy.Strategy = &typepb.RateLimitStrategy_TokenBucket{TokenBucket: &typepb.TokenBucket{
			MaxTokens: max(a.MaxTokens, 1), TokensPerFill: wrapperspb.UInt32(max(a.PerFill, 1)),
			FillInterval: durationpb.New(max(a.Fill.Truncate(time.Second), time.Second)),
		}}
	case AllowAll:
		strategy.Strategy = &typepb.RateLimitStrategy_BlanketRule_{BlanketRule: typepb.RateLimitStrategy_ALLOW_ALL}
	default:
		strategy.Strategy = &typepb.RateLimitStrategy_BlanketRule_{BlanketRule: typepb.RateLimitStrategy_DENY_ALL}
	}
	action.BucketAction = &pb.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction_{
		QuotaAssignmentAction: &pb.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction{
			AssignmentTimeToLive: durationpb.New(a.TTL.Truncate(time.Second)), RateLimitStrategy: strategy,
		},
	}
	return action
}
