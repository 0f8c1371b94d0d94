package admin

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/weir-ratelimit/weir/internal/topkeys"
)

// maxTop is the most keys of one answer.
const maxTop = 1000

// top answers GET /top?domain=&rule=&by=hits|denied&n=20.
func (h *handler) top(w http.ResponseWriter, r *http.Request) {
	if h.Top == nil {
		refuse(w, http.StatusNotFound, errors.New("keys are not counted here: start the sidecar with --top-keys 100"))
		return
	}
	query := r.URL.Query()
	n, err := number(query, "n", 20, 1, maxTop)
	if err != nil {
		refuse(w, http.StatusBadRequest, err)
		return
	}
	q := topkeys.Query{
		Domain: query.Get("domain"), Rule: query.Get("rule"), By: topkeys.By(query.Get("by")), N: n,
		HashValues: !h.seesValues(r),
	}
	if q.By == "" {
		q.By = topkeys.ByHits
	}
	keys, err := h.Top(q)
	if err != nil {
		refuse(w, http.StatusBadRequest, err)
		return
	}
	writeJSON(w, http.StatusOK, keys)
}

// number reads a parameter of a query.
func number(query url.Values, name string, otherwise, least, most int) (int, error) {
	text := query.Get(name)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		return 0, fmt.Errorf("%s: must be a number between %d and %d, got %q", name, least, most, text)
	}
	return n, nil
}
