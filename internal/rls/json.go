package rls

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/weir-ratelimit/weir/internal/decide/grpcerr"
)

// DecideJSON decides a RateLimitRequest in protobuf's JSON form. It calls the interceptor as a gRPC server does. It
// returns the response in JSON, and whether the overall code is OVER_LIMIT. It returns the errors of ShouldRateLimit,
// and InvalidArgument if the body is not a RateLimitRequest.
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
		c.message = mem.BufferSlice{mem.SliceBuffer(wire)}
		return nil
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

// decodeJSON returns the request in binary form. Only a few requests are decoded at once, because a body of 250 KB
// takes a CPU for up to 33 ms, and its messages take several times as much memory as its text.
func (s *Service) decodeJSON(ctx context.Context, body io.Reader) (wire []byte, err error) {
	select {
	case s.json <- struct{}{}:
		defer func() { <-s.json }()
	case <-ctx.Done():
		return nil, grpcerr.Status(ctx.Err())
	}
	text, err := s.readJSON(bufio.NewReaderSize(outOfTurn{body, s.json}, readSize))
	if err != nil {
		return nil, err
	}
	var req pb.RateLimitRequest
	if err := protojson.Unmarshal(text, &req); err != nil {
		return nil, invalid("the body is not a RateLimitRequest: %s", err)
	}
	if wire, err = proto.Marshal(&req); err != nil {
		return nil, invalid("%s", err)
	}
	return wire, nil
}

// outOfTurn reads a request's body. While it waits for the client's bytes, it gives the turn to other requests.
type outOfTurn struct {
	body io.Reader
	turn chan struct{}
}

// Read implements io.Reader.
func (r outOfTurn) Read(p []byte) (int, error) {
	<-r.turn
	defer func() { r.turn <- struct{}{} }()
	return r.body.Read(p)
}

// maxObjects is the maximum number of JSON objects in a request.
const maxObjects = 16 << 10

// readSize is the number of bytes of a body that are read at once.
const readSize = 16 << 10

// readJSON reads a request in JSON. It returns an error as soon as there are too many descriptors or objects.
func (s *Service) readJSON(body io.Reader) ([]byte, error) {
	var text bytes.Buffer
	var depth, descriptors, objects int
	for d, most := json.NewDecoder(io.TeeReader(body, &text)), s.o.Decider.MaxDescriptors(); ; {
		token, err := d.Token()
		switch {
		case errors.Is(err, io.EOF):
			return text.Bytes(), nil
		case err != nil:
			return nil, invalid("the body is not a RateLimitRequest: %s", err)
		case token == json.Delim('}'), token == json.Delim(']'):
			depth--
		case token == json.Delim('['):
			depth++
		case token == json.Delim('{'):
			objects++
			if depth++; depth == 3 { // {"descriptors": [{
				descriptors++
			}
			if descriptors > most {
				return nil, invalid("descriptors: must be at most %d, got more", most)
			}
			if objects > maxObjects {
				return nil, invalid("the body must have at most %d objects, got more", maxObjects)
			}
		}
	}
}
