package admin

import (
	"errors"
	"net/http"

	"github.com/weir-ratelimit/weir/internal/history"
)

// errNoHistory is the answer where counts over time are not kept.
var errNoHistory = errors.New("counts over time are not kept here")

// history answers GET /history?domain=&rule=&points=60.
func (h *handler) history(w http.ResponseWriter, r *http.Request) {
	if h.History == nil {
		refuse(w, http.StatusNotFound, errNoHistory)
		return
	}
	query := r.URL.Query()
	points, err := number(query, "points", 60, 1, history.Samples)
	if err != nil {
		refuse(w, http.StatusBadRequest, err)
		return
	}
	writeJSON(w, http.StatusOK, h.History.Read(history.Query{
		Domain: query.Get("domain"), Rule: query.Get("rule"), Points: points,
	}))
}
