package rules

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

// maxLoggedErrors bounds the log line of a refused load. GET /rules shows all errors.
const maxLoggedErrors = 20

func (r *Rules) logLoad(e reload.Event) {
	attrs := []slog.Attr{
		slog.String("reason", string(e.Reason)),
		slog.String("rules", reload.ShortHash(e.Hash)),
		slog.Int("files", e.Files),
		slog.Duration("took", e.Took),
	}
	if r.published != nil {
		info, _ := r.published.Last()
		attrs = append(attrs, slog.Uint64("published", info.Version), slog.String("author", info.Author))
	}
	if r.xds != nil {
		attrs = append(attrs, slog.String("xds_version", r.xds.Status().Version))
	}
	log := slog.New(r.o.Log.Handler().WithAttrs(attrs))
	ctx := context.Background()
	switch e.Outcome {
	case reload.Loaded:
		set := r.Set()
		log.LogAttrs(ctx, slog.LevelInfo, "rules loaded",
			slog.Int("domains", len(set.Domains())), slog.Int("limits", len(set.Limits())))
		if len(set.Domains()) == 0 && r.xds == nil { // a control plane often sends no rules first
			log.LogAttrs(ctx, slog.LevelWarn, "there are no rules, so every request is admitted",
				slog.Any("paths", lines(r.paths)))
		}
		if warnings := set.Warnings(); len(warnings) > 0 {
			log.LogAttrs(ctx, slog.LevelWarn, "rules have warnings", slog.Int("warning_count", warnings.Count()),
				slog.Any("warnings", errorLines(warnings).first()))
		}
		r.logLowered(set)
	case reload.Refused:
		if e.Reason == reload.ReasonStart && !r.o.AllowEmptyRules {
			return // the process ends with this error
		}
		lines := errorLines(e.Err)
		found := []slog.Attr{slog.Int("error_count", len(lines)), slog.Any("errors", lines.first())}
		if r.Set() == nil {
			log.LogAttrs(ctx, slog.LevelError, "rules refused; no rules are in force", found...)
			return
		}
		log.LogAttrs(ctx, slog.LevelError, "rules refused; the old rules stay in force", found...)
	case reload.Slow:
		log.LogAttrs(ctx, slog.LevelWarn, "rules take long to load; the old rules stay in force meanwhile",
			slog.Time("loading_since", r.reloader.Status().Loading))
	}
}

// logLowered logs which limits are lower than in the previous set, and that counters with more hits count as full.
func (r *Rules) logLowered(set *descriptors.Set) {
	before := r.logged
	if r.logged = set; before == nil {
		return
	}
	type position struct {
		domain, rule string
		position     int
	}
	positionOf := func(l *descriptors.Limit) position { return position{l.Rule.Domain, l.Rule.Path, l.Position()} }
	old := make(map[position]*descriptors.Limit)
	for _, l := range before.Limits() {
		r.pacer.rest()
		old[positionOf(l)] = l
	}
	lowered, shown := 0, lines(nil)
	for _, l := range set.Limits() {
		r.pacer.rest()
		was := old[positionOf(l)]
		if was == nil || l.Policy.Capacity() >= was.Policy.Capacity() || !was.SameCounters(l) {
			continue
		}
		if lowered++; lowered <= maxLoggedErrors {
			shown = append(shown, fmt.Sprintf("%s %s: %s, was %s", l.Rule.Domain, l.Rule.Path, l, was))
		}
	}
	if lowered > 0 {
		r.o.Log.LogAttrs(context.Background(), slog.LevelInfo, "limits are lower: a counter with more hits counts as full, "+
			"and denies until the lower limit has room again", slog.Int("limits", lowered),
			slog.Any("lowered", shown))
	}
}

// logReachable logs that the published rules cannot be read from Redis or, if why is nil, that they can be read again.
func (r *Rules) logReachable(why error) {
	if why != nil {
		r.o.Log.LogAttrs(context.Background(), slog.LevelWarn, "the published rules cannot be read, so the rules that "+
			"were read last stay in force",
			slog.String("error", why.Error()))
		return
	}
	r.o.Log.LogAttrs(context.Background(), slog.LevelInfo, "the published rules can be read again")
}

// lines are logged as an array in JSON, and as one string in text.
type lines []string

// MarshalText makes slog's text handler show the lines.
func (l lines) MarshalText() ([]byte, error) { return []byte(strings.Join(l, "; ")), nil }

// MarshalJSON keeps encoding/json from using MarshalText.
func (l lines) MarshalJSON() ([]byte, error) { return json.Marshal([]string(l)) }

func (l lines) first() lines { return l[:min(len(l), maxLoggedErrors)] }

// errorLines returns one line per error.
func errorLines(err error) lines {
	if err == nil {
		return nil
	}
	return strings.Split(err.Error(), "\n")
}
