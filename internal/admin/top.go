package admin

import (
	"cmp"
	"net/http"
	"net/url"
	"strconv"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/topkeys"
)

// maxTop is the most keys of one answer.
const maxTop = 1000

// top answers GET /top?domain=&rule=&by=hits|denied&n=20.
func (h *handler) top(r *http.Request) (keys adminapi.TopKeys, err error) {
	if h.Top == nil {
		return keys, refused(http.StatusNotFound, "keys are not counted here: start Weir with --top-keys 100")
	}
	query := r.URL.Query()
	n, err := number(query, "n", 20, 1, maxTop)
	if err != nil {
		return keys, err
	}
	keys, err = h.Top(topkeys.Query{
		Domain: query.Get("domain"), Rule: query.Get("rule"), N: n, HashValues: !h.seesValues(r),
		By: cmp.Or(adminapi.TopBy(query.Get("by")), adminapi.ByHits),
	})
	if err != nil {
		return keys, invalid("%s", err)
	}
	return keys, nil
}

// number reads a parameter of a query.
func number(query url.Values, name string, otherwise, least, most int) (int, error) {
	text := query.Get(name)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		return 0, invalid("%s: must be a number between %d and %d, got %q", name, least, most, text)
	}
	return n, nil
}
