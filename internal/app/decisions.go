package app

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/logging"
)

// decisionLog logs decisions, at a rate that line bounds. It does not log values of descriptors, which may be secrets.
type decisionLog struct {
	log  *slog.Logger
	line logging.Every
}

func newDecisionLog(log *slog.Logger) *decisionLog {
	return &decisionLog{log: log, line: logging.Every{Interval: time.Second, Lines: 100}}
}

// Watch implements decide.Watcher.
func (l *decisionLog) Watch(ctx context.Context, v *decide.Verdict) {
	skipped, ok := l.line.Allow(time.Now())
	if !ok {
		return
	}
	var found []string
	for i := range v.Statuses {
		st, text := &v.Statuses[i], "no rule"
		if st.Rule != nil {
			text = st.Rule.Path
		}
		parts := []string{fmt.Sprintf("%s cost %d", text, v.Request.Descriptors[i].Cost)}
		for hit, last := st.Hits(); hit < last; hit++ {
			d := &v.Decisions[hit]
			parts = append(parts, fmt.Sprintf("%s %s, %d remaining", v.Limits[hit], v.Outcome(hit), d.Remaining))
		}
		found = append(found, strings.Join(parts, ", "))
	}
	l.log.LogAttrs(ctx, slog.LevelDebug, "request decided", slog.String("domain", v.Request.Domain),
		slog.Bool("denied", v.Denied), slog.String("descriptors", strings.Join(found, "; ")),
		slog.Uint64("lines_skipped", skipped))
}
