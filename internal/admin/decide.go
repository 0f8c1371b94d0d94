package admin

import (
	"context"
	"errors"
	"net/http"

	"github.com/weir-ratelimit/weir/internal/words"
)

const (
	// jsonPath is where requests for a decision come, as with envoyproxy/ratelimit.
	jsonPath = "/json"
	// maxJSON is the largest of them, in bytes.
	maxJSON = 256 << 10
)

// healthcheck is the health check of envoyproxy/ratelimit: 200 and OK, or 500 and nothing.
func (h *handler) healthcheck(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), readyTimeout)
	defer cancel()
	if h.unhealthy(ctx) != nil {
		header(w, http.StatusInternalServerError, "text/plain; charset=utf-8")
		return
	}
	writeText(w, http.StatusOK, "OK")
}

// unhealthy returns why GET /healthcheck answers 500. Envoy Gateway restarts a process that answers so for half a
// minute. So a Redis that has answered once and is unreachable now does not count: all replicas would be restarted.
func (h *handler) unhealthy(ctx context.Context) error {
	if err := h.stoppingErr(ctx); err != nil {
		return err
	}
	if h.HealthcheckNeedsLoad || h.HealthcheckNeedsRules {
		set := h.Rules.Set()
		if set == nil || h.HealthcheckNeedsRules && len(set.Domains()) == 0 {
			return errors.New("there are no rules")
		}
	}
	if h.Counted == nil {
		return nil
	}
	return h.Counted(ctx)
}

func (h *handler) stoppingErr(context.Context) error {
	if h.stopping.Load() {
		return errors.New("stopping")
	}
	return nil
}

// decideJSON answers a request for a decision: 200, 429 for OVER_LIMIT, 400 for one that cannot be decided.
func (h *handler) decideJSON(w http.ResponseWriter, r *http.Request) {
	answer, isOver, err := h.DecideJSON(r.Context(), r.Body)
	if err != nil {
		writeError(w, invalid("%s", err))
		return
	}
	status := http.StatusOK
	if isOver {
		status = http.StatusTooManyRequests
	}
	header(w, status, "application/json")
	_, _ = words.Plain{Writer: w}.Write(answer) // the client has gone: nobody is left to tell
}

// asksForDecision says whether the request may be answered without a right to change state: whoever may ask by gRPC may
// ask here.
func (h *handler) asksForDecision(r *http.Request) bool {
	return r.URL.Path == jsonPath && !h.DecideGuarded
}
