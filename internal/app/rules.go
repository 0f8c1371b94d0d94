package app

import (
	"context"
	"maps"
	"slices"

	"github.com/weir-ratelimit/weir/internal/metrics"
	"github.com/weir-ratelimit/weir/internal/published"
	"github.com/weir-ratelimit/weir/internal/rules"
)

// loadRules loads the rules for the first time.
func (a *App) loadRules(ctx context.Context) error {
	process, err := a.o.process()
	if err != nil {
		return err
	}
	o := rules.Options{
		Process: process, Stores: slices.Sorted(maps.Keys(a.o.NamedStores)), AllowEmpty: a.o.AllowEmptyRules,
		Poll: a.o.RulesPoll, Settle: a.o.RulesSettle, HoldGC: a.o.HoldGC,
		Prepare: a.boosts.Prepare, Live: a.rulesLive, Observer: a.metrics, Log: a.o.Log,
	}
	for _, path := range a.o.Rules {
		if path != rulesStore {
			o.Paths = append(o.Paths, path)
		}
	}
	if len(o.Paths) < len(a.o.Rules) {
		o.Published = published.New(a.redis)
	}
	if a.rules, err = rules.Load(ctx, o); err != nil || o.Published == nil {
		return err
	}
	a.metrics.Published.From(func() metrics.PublishedStats {
		p := a.rules.Published()
		return metrics.PublishedStats{Version: p.Version, Newest: p.Newest, Reachable: p.Error == ""}
	})
	return nil
}
