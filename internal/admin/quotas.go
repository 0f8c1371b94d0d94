package admin

import (
	"net/http"

	"github.com/weir-ratelimit/weir/internal/admin/topkeys"
	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
)

// Quotas are the parts of limits that are assigned to Envoys.
type Quotas interface {
	// Status is what GET /status shows.
	Status() adminapi.QuotaStatus
	// List answers GET /quotas.
	List(q QuotaQuery) *adminapi.QuotaList
}

// QuotaQuery chooses buckets.
type QuotaQuery struct {
	// Domain and Rule, a rule's path, choose buckets; empty is any.
	Domain, Rule string
	By           adminapi.QuotaOrder
	// N is the most buckets of the answer, and the most Envoys.
	N int
}

// quotas answers GET /quotas?domain=&rule=&sort=assigned|missing&n=100.
func (h *handler) quotas(r *http.Request) (*adminapi.QuotaList, error) {
	if h.Quotas == nil {
		return nil, refused(http.StatusNotFound, "no quotas are assigned here: start weir serve with --quota")
	}
	query := r.URL.Query()
	n, err := number(query, "n", 100, 1, maxTop)
	if err != nil {
		return nil, err
	}
	by := adminapi.QuotaOrder(query.Get("sort"))
	switch by {
	case "":
		by = adminapi.ByAssigned
	case adminapi.ByAssigned, adminapi.ByMissing:
	default:
		return nil, invalid("sort: must be assigned or missing, or left out; got %q", string(by))
	}
	all := h.Quotas.List(QuotaQuery{Domain: query.Get("domain"), Rule: query.Get("rule"), By: by, N: n})
	if all.Hashed = !h.seesValues(r); all.Hashed {
		for i := range all.Buckets {
			hideValues(&all.Buckets[i])
		}
	}
	return all, nil
}

// hideValues puts hashes in the place of a bucket's values.
func hideValues(q *adminapi.Quota) {
	for i := range q.Entries {
		q.Entries[i].Value = topkeys.Hashed(q.Entries[i].Value)
	}
	q.Descriptor = descriptors.FormatEntries(q.Entries)
}
