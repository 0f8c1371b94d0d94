package rlqs

import (
	"fmt"
	"time"
	"unicode/utf8"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	maxElapsed = time.Hour // maximum that a report may claim
	// maxUsages bounds the memory of a report, because protobuf uses up to 100 bytes for a usage of 2 bytes on the wire.
	maxUsages = 200_000
)

// Codec returns a codec that accepts invalid UTF-8 in the bucket ids of a RateLimitQuotaUsageReports. It replaces each
// invalid byte by 0, which entriesOf refuses. protobuf would refuse the whole message, and because values come from
// headers, one client could end the quotas of all others.
func Codec(of encoding.CodecV2) encoding.CodecV2 { return codec{of} }

type codec struct{ encoding.CodecV2 }

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if _, ok := v.(*pb.RateLimitQuotaUsageReports); ok {
		wire := data.Materialize()
		if n := clearInvalid(wire, 2, 1, 1); n > maxUsages {
			return fmt.Errorf("bucket_quota_usages: must be at most %d, got %d", maxUsages, n)
		}
		data = mem.BufferSlice{mem.SliceBuffer(wire)}
	}
	return c.CodecV2.Unmarshal(data, v)
}

// clearInvalid replaces the bytes that are not UTF-8 in all texts of the messages at a path of fields, and returns the
// number of messages in the first of these fields. It ignores malformed data.
func clearInvalid(wire []byte, path ...protowire.Number) (messages int) {
	for len(wire) > 0 {
		number, kind, tag := protowire.ConsumeTag(wire)
		if tag < 0 {
			return messages
		}
		n := protowire.ConsumeFieldValue(number, kind, wire[tag:])
		if n < 0 {
			return messages
		}
		if kind == protowire.BytesType {
			body, _ := protowire.ConsumeBytes(wire[tag:])
			switch {
			case len(path) == 0:
				clearText(body)
			case number == path[0]:
				messages++
				clearInvalid(body, path[1:]...)
			}
		}
		wire = wire[tag+n:]
	}
	return messages
}

func clearText(text []byte) {
	for len(text) > 0 {
		r, n := utf8.DecodeRune(text)
		if r == utf8.RuneError && n == 1 {
			text[0] = 0
		}
		text = text[n:]
	}
}

// usagesOf returns the usages of a message, or an error if the message is invalid.
func usagesOf(m *pb.RateLimitQuotaUsageReports) ([]Usage, error) {
	all := make([]Usage, 0, len(m.GetBucketQuotaUsages()))
	for i, u := range m.GetBucketQuotaUsages() {
		bucket := u.GetBucketId().GetBucket()
		if _, ok := bucket[""]; ok {
			return nil, fmt.Errorf("bucket_quota_usages[%d].bucket_id.bucket: a key is empty; name each entry of the bucket", i)
		}
		all = append(all, Usage{
			ID: NewBucketID(bucket), Allowed: u.GetNumRequestsAllowed(), Denied: u.GetNumRequestsDenied(),
			Elapsed: min(max(u.GetTimeElapsed().AsDuration(), 0), maxElapsed),
		})
	}
	return all, nil
}

// responseOf converts assignments to Envoy's response, in their order.
func responseOf(all []Assignment) *pb.RateLimitQuotaResponse {
	res := &pb.RateLimitQuotaResponse{BucketAction: make([]*pb.RateLimitQuotaResponse_BucketAction, 0, len(all))}
	for i := range all {
		if action := actionOf(&all[i]); action != nil {
			res.BucketAction = append(res.BucketAction, action)
		}
	}
	return res
}

// actionOf converts an assignment to Envoy's form. It returns nil if the ID is not a result of NewBucketID. Envoy
// divides by whole seconds, so a fill below one second would not limit.
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
