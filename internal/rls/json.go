package rls

import (
	"context"
	"fmt"
	"io"

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
	ctx context.Context, body io.Reader, interceptor grpc.UnaryServerInterceptor,
) (answer []byte, isOver bool, err error) {
	wire, err := s.decodeJSON(ctx, body)
	if err != nil {
		return nil, false, s.reject(err)
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

// decodeJSON returns the request as a gRPC client sends it. Few requests are decoded at once: the messages of a body
// take several times as much memory as its text.
func (s *Service) decodeJSON(ctx context.Context, body io.Reader) (wire []byte, err error) {
	text, err := io.ReadAll(&jsonBody{Reader: body, most: s.o.Decider.MaxDescriptors()})
	if err != nil {
		return nil, invalid("%s", err)
	}
	select {
	case s.json <- struct{}{}:
		defer func() { <-s.json }()
	case <-ctx.Done():
		return nil, toStatus(ctx.Err())
	}
	var req pb.RateLimitRequest
	if err := protojson.Unmarshal(text, &req); err != nil {
		return nil, invalid("the body is no RateLimitRequest: %s", err)
	}
	if wire, err = proto.Marshal(&req); err != nil {
		return nil, invalid("%s", err)
	}
	return wire, nil
}

// maxObjects is the most JSON objects of a request.
const maxObjects = 16 << 10

// jsonBody counts the descriptors of a request, and all of its objects, while it is read. It fails where they are too
// many.
type jsonBody struct {
	io.Reader
	most int // descriptors

	depth, descriptors, objects int
	inText, isEscaped           bool
}

func (b *jsonBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	for _, c := range p[:n] {
		switch {
		case b.isEscaped:
			b.isEscaped = false
		case b.inText && c == '\\':
			b.isEscaped = true
		case c == '"':
			b.inText = !b.inText
		case b.inText:
		case c == '}', c == ']':
			b.depth--
		case c == '[':
			b.depth++
		case c == '{':
			b.depth++
			b.objects++
			if b.depth == 3 { // {"descriptors": [{
				b.descriptors++
			}
		}
	}
	switch {
	case b.descriptors > b.most:
		return n, fmt.Errorf("descriptors: must be at most %d, got more", b.most)
	case b.objects > maxObjects:
		return n, fmt.Errorf("the body must have at most %d objects, got more", maxObjects)
	}
	return n, err
}
