package admin

import (
	"net/http"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/topkeys"
)

// quotas answers GET /quotas?n=100.
func (h *handler) quotas(r *http.Request) (*adminapi.QuotaList, error) {
	if h.Quotas == nil {
		return nil, &statusError{http.StatusNotFound, "no quotas are assigned here: start weir serve with --quota"}
	}
	n, err := number(r.URL.Query(), "n", 100, 1, maxTop)
	if err != nil {
		return nil, err
	}
	all := h.Quotas(n)
	if all.Hashed = !h.seesValues(r); all.Hashed {
		for i := range all.Buckets {
			for j := range all.Buckets[i].Entries {
				e := &all.Buckets[i].Entries[j]
				e.Value = topkeys.Hashed(e.Value)
			}
		}
	}
	return all, nil
}
