package admin_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/admin"
	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/descriptors"
)

// fakeQuotas have one bucket, and keep the last query.
type fakeQuotas struct{ asked string }

func (q *fakeQuotas) Status() adminapi.QuotaStatus {
	return adminapi.QuotaStatus{Streams: 1, Buckets: 1}
}

func (q *fakeQuotas) List(domain, rule string, n int) *adminapi.QuotaList {
	q.asked = fmt.Sprint(domain, rule, n)
	return &adminapi.QuotaList{QuotaStatus: q.Status(), Found: 1, Buckets: []adminapi.Quota{{
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
		r := httptest.NewRequestWithContext(t.Context(), "GET", "/quotas?domain=shop&rule=plan&n=7", nil)
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
		if q.asked != "shopplan7" {
			t.Errorf("the query is %s", q.asked)
		}
	}
	const want = `n: must be a number between 1 and 1000, got \"0\"`
	if status, body := ask(t, h, "GET", "/quotas?n=0"); status != http.StatusBadRequest || !strings.Contains(body, want) {
		t.Errorf("%d %s", status, body)
	}
}
