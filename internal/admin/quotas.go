package admin

import (
	"net/http"

	"github.com/weir-ratelimit/weir/internal/admin/topkeys"
	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/descriptors"
)

// Quotas are the parts of limits that are assigned to Envoys.
type Quotas interface {
	// Status is what GET /status shows.
	Status() adminapi.QuotaStatus
	// List returns at most n buckets of a domain and of a rule, by its path; an empty name chooses all.
	List(domain, rule string, n int) *adminapi.QuotaList
}

// quotas answers GET /quotas?domain=&rule=&n=100.
func (h *handler) quotas(r *http.Request) (*adminapi.QuotaList, error) {
	if h.Quotas == nil {
		return nil, refused(http.StatusNotFound, "no quotas are assigned here: start weir serve with --quota")
	}
	query := r.URL.Query()
	n, err := number(query, "n", 100, 1, maxTop)
	if err != nil {
		return nil, err
	}
	all := h.Quotas.List(query.Get("domain"), query.Get("rule"), n)
	if all.Hashed = !h.seesValues(r); all.Hashed {
		for i := range all.Buckets {
			q := &all.Buckets[i]
			for j := range q.Entries {
				q.Entries[j].Value = topkeys.Hashed(q.Entries[j].Value)
			}
			q.Descriptor = descriptors.FormatEntries(q.Entries)
		}
	}
	return all, nil
}
