package admin

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/weir-ratelimit/weir/internal/adminapi"
)

// maxShownErrors bounds the errors in a status; GET /rules has them all.
const maxShownErrors = 100

// check asks every check.
func (h *handler) check(ctx context.Context, exclude ...string) (ready bool, checks []adminapi.Check) {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	ready = true
	for _, c := range h.Checks {
		if slices.Contains(exclude, c.Name) {
			continue
		}
		shown := adminapi.Check{Name: c.Name}
		if err := c.Err(ctx); err != nil {
			ready, shown.Error = false, err.Error()
		} else if c.Note != nil {
			shown.Note = c.Note()
		}
		checks = append(checks, shown)
	}
	return ready, checks
}

func (h *handler) status(w http.ResponseWriter, r *http.Request) {
	writeJSON(w, http.StatusOK, h.statusNow(r.Context()))
}

// statusNow is the answer of GET /status.
func (h *handler) statusNow(ctx context.Context) adminapi.Status {
	s := adminapi.Status{
		Build: h.Build, StartedAt: h.StartedAt, Now: time.Now(), Store: h.Store, TopKeys: h.Top != nil,
	}
	s.Ready, s.Checks = h.check(ctx)
	s.Rules.RulesStatus = h.Rules.Status()
	s.Rules.Files, s.Rules.ErrorCount = len(s.Rules.RulesStatus.Files), len(s.Rules.Errors)
	s.Rules.Errors = s.Rules.Errors[:min(len(s.Rules.Errors), maxShownErrors)]
	if set := h.Rules.Set(); set != nil {
		s.Rules.Domains, s.Rules.Limits = len(set.Domains()), len(set.Limits())
		for _, d := range set.Domains() {
			s.Rules.Rules += len(d.Rules())
		}
	}
	return s
}
