package rls

import (
	"context"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// DecideJSON decides a RateLimitRequest in protobuf's JSON form, through an interceptor as a server has it, and returns
// the response in the same form and whether it is OVER_LIMIT. Errors are those of ShouldRateLimit, and InvalidArgument
// for a body that is no request.
func (s *Service) DecideJSON(
	ctx context.Context, body []byte, interceptor grpc.UnaryServerInterceptor,
) (answer []byte, isOver bool, err error) {
	var req pb.RateLimitRequest
	if err := protojson.Unmarshal(body, &req); err != nil {
		return nil, false, s.reject(status.Error(codes.InvalidArgument, "the body is no RateLimitRequest: "+err.Error()))
	}
	wire, err := proto.Marshal(&req)
	if err != nil {
		return nil, false, s.reject(status.Error(codes.InvalidArgument, err.Error()))
	}
	info := &grpc.UnaryServerInfo{Server: s, FullMethod: pb.RateLimitService_ShouldRateLimit_FullMethodName}
	receive := func(to any) error {
		c, ok := to.(*call)
		if !ok {
			return status.Errorf(codes.Internal, "the request is a %T", to)
		}
		return c.decode(wire)
	}
	out, err := s.handler(info)(s, ctx, receive, interceptor)
	if err != nil {
		return nil, false, err
	}
	r, ok := out.(*reply)
	if !ok {
		return nil, false, status.Errorf(codes.Internal, "the response is a %T", out)
	}
	var res pb.RateLimitResponse
	if err := proto.Unmarshal(r.buffer, &res); err != nil {
		return nil, false, status.Error(codes.Internal, err.Error())
	}
	answer, err = protojson.Marshal(&res)
	return answer, res.GetOverallCode() == pb.RateLimitResponse_OVER_LIMIT, err
}
