package app

import (
	"context"
	"log/slog"

	"github.com/weir-ratelimit/weir/internal/admin"
	"github.com/weir-ratelimit/weir/internal/metrics"
	"github.com/weir-ratelimit/weir/internal/published"
	"github.com/weir-ratelimit/weir/internal/rulefiles"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

// source is where the rules come from: folders and files, then what is published.
func (r *rules) source(o *Options) (reload.Source, error) {
	paths := r.paths
	if len(paths) == len(o.Rules) {
		return rulefiles.SourceFor(r.process, paths...), nil
	}
	sets, err := published.Open(o.Store, o.StoreKeyPrefix)
	if err != nil {
		return nil, err
	}
	r.published = sets.Follow(r.reached)
	if err := r.metrics.WatchPublished(r.publishedStats); err != nil {
		return nil, err
	}
	if len(paths) == 0 {
		return r.published, nil
	}
	return reload.Join(r.unwatched, rulefiles.SourceFor(r.process, paths...), r.published), nil
}

// close ends the connections to Redis.
func (r *rules) close() error {
	if r.published == nil {
		return nil
	}
	return r.published.Close()
}

// reached logs that Redis cannot be asked for rules, and that it can again.
func (r *rules) reached(why error) {
	if why != nil {
		r.log.LogAttrs(context.Background(), slog.LevelWarn, "the published rules cannot be read, those that were read last stay",
			slog.String("error", why.Error()))
		return
	}
	r.log.LogAttrs(context.Background(), slog.LevelInfo, "the published rules can be read again")
}

func (r *rules) unwatched(err error) {
	r.log.LogAttrs(context.Background(), slog.LevelWarn, "rule files are not watched, only polled", slog.String("error", err.Error()))
}

// version is what a load's line says of the set that was read.
func (r *rules) version() []slog.Attr {
	if r.published == nil {
		return nil
	}
	info, _ := r.published.Last()
	return []slog.Attr{slog.Uint64("published", info.Version), slog.String("author", info.Author)}
}

// publishedStats are for metrics.
func (r *rules) publishedStats() metrics.PublishedStats {
	newest, away := r.published.Last()
	return metrics.PublishedStats{
		Version: r.reloader.Get().published.Version, Newest: newest.Version, Reachable: away == nil,
	}
}

// publishedStatus is nil without the rules in Redis.
func (r *rules) publishedStatus() *admin.PublishedStatus {
	if r.published == nil {
		return nil
	}
	live := r.reloader.Get().published
	newest, away := r.published.Last()
	s := &admin.PublishedStatus{
		Version: live.Version, Hash: live.Hash, Author: live.Author, PublishedAt: live.PublishedAt, Newest: newest.Version,
	}
	if away != nil {
		s.Error = away.Error()
	}
	return s
}
