package redistest

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// Hook is called for each command and pipeline of a client that has it through AddHook. send sends the commands and
// sets their replies.
type Hook func(cmds []redis.Cmder, send func() error) error

// DialHook implements redis.Hook. It does not change connections.
func (Hook) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (h Hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return h([]redis.Cmder{cmd}, func() error { return next(ctx, cmd) })
	}
}

// ProcessPipelineHook implements redis.Hook.
func (h Hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return h(cmds, func() error { return next(ctx, cmds) })
	}
}
