package app

import (
	"context"
	"log/slog"

	"github.com/weir-ratelimit/weir/internal/rulefiles"
)

// warnUnread logs the files beside the rules that look like rules, and are not read. It looks in a goroutine of its own, as
// a file system may not answer, and in one at a time.
func (r *rules) warnUnread() {
	if len(r.paths) == 0 || !r.looking.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer r.looking.Store(false)
		ctx := context.Background()
		unread := rulefiles.Unread(ctx, r.paths...)
		if len(unread) == 0 {
			return
		}
		lines := errorLines(unread)
		r.log.LogAttrs(ctx, slog.LevelWarn, "files that look like rules are not read",
			slog.Int("files", unread.Count()), slog.Any("warnings", lines[:min(len(lines), maxLoggedErrors)]))
	}()
}
