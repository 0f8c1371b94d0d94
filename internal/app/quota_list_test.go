package app

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/adminapi"
)

const listedRules = `
domain: shop
descriptors:
- {key: plan, value: banned, rate_limit: {unit: second, requests_per_unit: 0}}
- {key: plan, value: free, rate_limit: {unlimited: true}}
- {key: plan, value: paid, rate_limit: {algorithm: token_bucket, unit: second, requests_per_unit: 1000}}
- {key: plan, value: queued, rate_limit: {algorithm: leaky_queue, unit: second, requests_per_unit: 5}}
- {key: plan, value: seen, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 5}}
`

// GET /quotas has each bucket with its rule, limits and state, those of one rule, and Envoys; GET /status has sums.
func TestListOfQuotas(t *testing.T) {
	p := start(t, quotaOptions(t, listedRules))
	s := p.quotaStream(t)
	states := map[string]string{
		"banned": "denied", "free": "unlimited", "paid": "assigned", "seen": "shadow",
	}
	for value := range states {
		s.report("shop", "plan", value, 1)
	}
	s.report("shop", "plan", "queued", 1) // is refused, and not remembered
	s.report("shop", "nothing", "x", 1)
	states["x"] = "unlimited"
	list := func(query string) (all adminapi.QuotaList) {
		t.Helper()
		status, body := p.http("GET", "/quotas"+query)
		if err := json.Unmarshal([]byte(body), &all); err != nil || status != http.StatusOK {
			t.Fatalf("%d %v\n%s", status, err, body)
		}
		return all
	}
	got := map[string]string{}
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		all := list("")
		waiting := false
		for _, b := range all.Buckets {
			got[b.Entries[0].Value] = b.State
			waiting = waiting || b.State == "waiting"
		}
		if len(all.Buckets) == len(states) && !waiting {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("buckets: %v", got)
		}
	}
	for value, want := range states {
		if got[value] != want {
			t.Errorf("%s is %s, want %s", value, got[value], want)
		}
	}
	all := list("?domain=shop&rule=plan%3Dpaid&n=1")
	if b := all.Buckets[0]; all.Found != 1 || b.Descriptor != "plan=paid" || b.Rule != "plan=paid" || b.Envoys != 1 ||
		b.Rate < 500 || b.Burst < 1 || strings.Join(b.Limits, ";") != "token_bucket: 1000 per 1s, burst 1000" {
		t.Errorf("of one rule: %+v", all)
	}
	var now adminapi.Status
	if _, body := p.http("GET", "/status"); json.Unmarshal([]byte(body), &now) != nil || now.Quotas == nil ||
		now.Quotas.Streams != 1 || now.Quotas.Buckets != 5 {
		t.Errorf("GET /status: %s", body)
	}
	for _, want := range []string{"leaky_queue", "quota=true"} { // which limit cannot be assigned, and that quotas are
		if !strings.Contains(p.log.String(), want) {
			t.Errorf("the log does not say %s", want)
		}
	}
}
