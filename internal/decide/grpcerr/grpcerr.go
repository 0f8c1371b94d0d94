// Package grpcerr converts errors of package decide to gRPC statuses, for the gRPC service and for Envoy's module.
package grpcerr

import (
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Status returns the gRPC status of an error of package decide.
func Status(err error) error {
	switch invalid := (*decide.InvalidError)(nil); {
	case errors.As(err, &invalid):
		return status.Error(codes.InvalidArgument, invalid.Msg)
	case errors.Is(err, decide.ErrNoRules), errors.Is(err, decide.ErrUndecided):
		return status.Error(codes.Unavailable, err.Error())
	case errors.Is(err, limiter.ErrShed):
		return status.Error(codes.ResourceExhausted, err.Error())
	default:
		return status.FromContextError(err).Err()
	}
}
