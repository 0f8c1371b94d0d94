package admin

import (
	"context"
	"errors"
	"net/http"

	"github.com/weir-ratelimit/weir/internal/words"
)

const (
	// jsonPath is the path for deciding requests, as in envoyproxy/ratelimit.
	jsonPath = "/json"
	// maxJSON is the maximum size of such a request, in bytes.
	maxJSON = 256 << 10
)

// healthcheck is the health check of envoyproxy/ratelimit: 200 with OK, or 500 without a body.
func (h *handler) healthcheck(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), readyTimeout)
	defer cancel()
	if h.unhealthy(ctx) != nil {
		header(w, http.StatusInternalServerError, "text/plain; charset=utf-8")
		return
	}
	writeText(w, http.StatusOK, "OK")
}

// unhealthy returns the reason why GET /healthcheck responds with 500. Envoy Gateway restarts a process that responds
// with 500 for half a minute. An unreachable Redis is no reason if it has responded before, because an outage of Redis
// must not restart all replicas.
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

// decideJSON responds with a decision: 200, 429 for OVER_LIMIT, or 400 for an invalid request.
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
	_, _ = words.Plain{Writer: w}.Write(answer) // on error the client has disconnected
}

// asksForDecision reports whether the request is for /json and needs no right, like a request to the gRPC service.
func (h *handler) asksForDecision(r *http.Request) bool {
	return r.URL.Path == jsonPath && !h.DecideGuarded
}
