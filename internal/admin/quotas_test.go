package admin_test

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/admin"
	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
)

// fakeQuotas have one bucket, and keep the last query.
type fakeQuotas struct{ asked admin.QuotaQuery }

func (q *fakeQuotas) Status() adminapi.QuotaStatus {
	return adminapi.QuotaStatus{Streams: 1, Buckets: 1}
}

func (q *fakeQuotas) List(query admin.QuotaQuery) *adminapi.QuotaList {
	q.asked = query
	return &adminapi.QuotaList{Streams: 1, Count: 1, Found: 1, Buckets: []adminapi.Quota{{
		Domain: "shop", Descriptor: "plan=secret", Entries: []descriptors.Entry{{Key: "plan", Value: "secret"}},
	}}}
}

// Values are shown to those who may change state. Others see hashes, in the descriptor, too.
func TestQuotasHideValues(t *testing.T) {
	q := &fakeQuotas{}
	server := admin.NewServer(admin.Options{
		Rules: &fakeRules{}, Quotas: q, Metrics: http.NotFoundHandler(), Log: slog.New(slog.DiscardHandler),
	})
	h := onSocket(server)
	for _, isHidden := range []bool{false, true} {
		r := httptest.NewRequestWithContext(t.Context(), "GET", "/quotas?domain=shop&rule=plan&sort=missing&n=7", nil)
		w, asked := httptest.NewRecorder(), h
		if isHidden {
			asked = server.Handler
		}
		asked.ServeHTTP(w, r)
		var all adminapi.QuotaList
		if err := json.Unmarshal(w.Body.Bytes(), &all); err != nil || w.Code != http.StatusOK || len(all.Buckets) != 1 {
			t.Fatalf("%d %v: %s", w.Code, err, w.Body)
		}
		b := all.Buckets[0]
		if all.Hashed != isHidden || strings.Contains(w.Body.String(), "secret") == isHidden ||
			b.Descriptor != "plan="+b.Entries[0].Value {
			t.Errorf("hidden %t: %s", isHidden, w.Body)
		}
		if want := (admin.QuotaQuery{Domain: "shop", Rule: "plan", By: adminapi.ByMissing, N: 7}); q.asked != want {
			t.Errorf("the query is %+v, want %+v", q.asked, want)
		}
	}
	for query, want := range map[string]string{
		"?n=0":     `n: must be a number between 1 and 1000, got \"0\"`,
		"?sort=up": `sort: must be assigned or missing, or left out; got \"up\"`,
	} {
		if status, body := ask(t, h, "GET", "/quotas"+query); status != http.StatusBadRequest || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", query, status, body)
		}
	}
}
