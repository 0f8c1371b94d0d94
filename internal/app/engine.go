package app

import (
	"context"
	"log/slog"

	"github.com/weir-ratelimit/weir/internal/rules"
	"github.com/weir-ratelimit/weir/internal/store"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

// engineCheck warns of limits that this Redis cannot decide, before requests meet them.
type engineCheck struct {
	store   *store.Store
	rules   *rules.Rules
	log     *slog.Logger
	changed chan struct{} // has an element if rules have changed
}

// hint has Run check the rules in force.
func (e *engineCheck) hint() { reload.Hint(e.changed) }

// Run checks the rules after each change, until ctx is done: a reload does not wait for Redis.
func (e *engineCheck) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.changed:
		}
		if err := e.store.PingRedisCell(ctx, e.rules.RedisCellStores()); err != nil {
			e.log.LogAttrs(ctx, slog.LevelWarn, "limits with engine: redis_cell cannot be decided, their on_store_failure "+
				"answers", slog.String("error", err.Error()))
		}
	}
}

// ready returns why the store cannot decide the rules in force.
func (e *engineCheck) ready(ctx context.Context) error {
	if err := e.store.Ping(ctx); err != nil {
		return err
	}
	return e.store.PingRedisCell(ctx, e.rules.RedisCellStores())
}
