package admin

import (
	"context"
	"net/http"
	"net/url"
)

// Explainer answers GET /explain.
type Explainer interface {
	// Explain answers what the query asks, as something for JSON. The error says what is wrong with the query.
	Explain(ctx context.Context, query url.Values) (any, error)
}

// explain answers one question at a time, since one among many rules may take a CPU for a while.
func (h *handler) explain(w http.ResponseWriter, r *http.Request) {
	answer, err := h.Explainer.Explain(r.Context(), r.URL.Query())
	if err != nil {
		refuse(w, http.StatusBadRequest, err)
		return
	}
	writeJSON(w, http.StatusOK, answer)
}
