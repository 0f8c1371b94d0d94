package app

import (
	"context"
	"log/slog"
	"maps"
	"slices"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/weir-ratelimit/weir/internal/rules"
	"github.com/weir-ratelimit/weir/internal/rules/xds"
)

// openRules loads the rules for the first time.
func (a *App) openRules(ctx context.Context) error {
	process, err := a.o.process()
	if err != nil {
		return err
	}
	o := rules.Options{
		Process: process, Stores: slices.Sorted(maps.Keys(a.o.NamedStores)), AllowEmpty: a.o.AllowEmptyRules,
		EveryFile: a.o.RulesEveryFile, Prefix: a.o.RulesPrefix, MaxSize: a.o.MaxRulesSize,
		Poll: a.o.Bounds.RulesPoll, Settle: a.o.Bounds.RulesSettle, HoldGC: a.o.HoldGC,
		Live: a.rulesLive, Observer: a.metrics, Log: a.o.Log,
	}
	for _, path := range a.o.Rules {
		switch path {
		case rulesStore:
			o.Published = rules.NewPublished(a.redis)
		case rulesXDS:
			o.XDS = a.openXDS()
		default:
			o.Paths = append(o.Paths, path)
		}
	}
	if a.rules, err = rules.Load(ctx, o); err != nil {
		return err
	}
	a.add("rules", a.rules.Run, nil)
	if set := a.rules.Set(); a.top != nil && set != nil {
		a.top.Keep(set)
	}
	if o.Published != nil {
		a.metrics.Published.From(a.rules.Published)
	}
	return nil
}

// openXDS makes the source of --rules xds, and shows it in the metrics.
func (a *App) openXDS() *xds.Source {
	if a.xds != nil {
		return a.xds // --rules xds twice
	}
	a.o.XDS.Log = a.o.Log
	a.o.XDS.MaxSize = a.o.MaxRulesSize
	a.xds = xds.New(a.o.XDS)
	a.add("xDS", nil, a.xds.Close)
	a.metrics.XDS.From(a.xds.Status)
	return a.xds
}

// rulesLive is called whenever rules went live. After the health server's Shutdown it changes nothing.
func (a *App) rulesLive() {
	a.health.set(healthpb.HealthCheckResponse_SERVING)
	if a.store == nil {
		return // the process starts: New and Run do the rest
	}
	a.store.DropDenials()
	a.quotasChanged()
	a.checkEngine(context.Background())
	if a.top != nil {
		a.top.Keep(a.rules.Set())
	}
}

// Reload reads the rule files now. Its error is why their content is not in force; it has been logged.
func (a *App) Reload(ctx context.Context) error {
	before := a.rules.Status()
	err := a.rules.Reload(ctx)
	if after := a.rules.Status(); after.LoadedAt.Equal(before.LoadedAt) && after.ErrorsAt.Equal(before.ErrorsAt) {
		a.o.Log.LogAttrs(ctx, slog.LevelInfo, "rule files have not changed", slog.Bool("refused", err != nil))
	}
	return err
}
