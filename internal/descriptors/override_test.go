package descriptors_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/internal/descriptors"
	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

const overrideRules = `
domain: shop
descriptors:
  - key: client
    shadow_mode: true
    rate_limits:
      - {name: first, algorithm: funnel, requests_per_unit: 10, unit: second, burst: 20, on_store_failure: deny}
      - {name: second, requests_per_unit: 10, unit: day}
  - {key: free, rate_limit: {unlimited: true, replaces: [{name: first}]}}
  - {key: known}
  - {key: module, rate_limit: {algorithm: funnel, requests_per_unit: 10, unit: second, engine: redis_cell}}
  - {key: spiky, rate_limit: {algorithm: sliding_window, requests_per_unit: 10, unit: second, segment_cap: 5}}
  - {key: leased, rate_limit: {algorithm: funnel, requests_per_unit: 10, unit: second, consistency: leased}}
`

func TestOverrideOfALeasedRuleIsStrict(t *testing.T) {
	shop := casetest.Compile(t, overrideRules).Domain("shop")
	l, err := shop.Override(shop.Match(casetest.Entries("leased=c")), 7, time.Minute)
	if err != nil || l.Placement() != (descriptors.Placement{}) {
		t.Errorf("%+v, %v; want no lease", l.Placement(), err)
	}
}

func TestOverride(t *testing.T) {
	shop := casetest.Compile(t, overrideRules).Domain("shop")
	type shown struct {
		ID        int
		Name, Key string
		Algorithm limiter.Algorithm
		Limit     int64
		Window    time.Duration
		Capacity  int64
		Unit      descriptors.Unit
		Multiple  uint32
		Mode      limiter.Mode
		OnFailure descriptors.OnStoreFailure
		Replaces  []string
	}
	for _, tt := range []struct {
		entries string
		window  time.Duration
		want    shown
	}{
		{"client=c", time.Minute, shown{
			0, "first", "funnel@60000000us|shop|client=c", limiter.Funnel, 7, time.Minute, 7,
			descriptors.Minute, 1, limiter.Shadow, descriptors.Deny, nil,
		}},
		{"free=c", 90 * time.Second, shown{
			-1, "", "fixed_window@90000000us|shop|free=c", limiter.FixedWindow, 7, 90 * time.Second, 7,
			descriptors.Second, 90, limiter.Enforce, descriptors.Local,
			[]string{"first"},
		}},
		{"module=c", time.Minute, shown{
			2, "", "funnel.redis_cell@60000000us|shop|module=c", limiter.Funnel, 7, time.Minute, 7,
			descriptors.Minute, 1, limiter.Enforce, descriptors.Local, nil,
		}},
		{"known=c", 1500 * time.Millisecond, shown{
			-1, "", "fixed_window@1500000us|shop|known=c", limiter.FixedWindow, 7, 1500 * time.Millisecond, 7,
			descriptors.UnitUnknown, 0, limiter.Enforce, descriptors.Local, nil,
		}},
		{"unheard=of", 365 * 24 * time.Hour, shown{
			-1, "", "fixed_window@31536000000000us|shop|unheard=of", limiter.FixedWindow, 7, 365 * 24 * time.Hour, 7,
			descriptors.Year, 1, limiter.Enforce, descriptors.Local, nil,
		}},
	} {
		es := casetest.Entries(tt.entries)
		l, err := shop.Override(shop.Match(es), 7, tt.window)
		if err != nil {
			t.Errorf("Override(%s): %v", tt.entries, err)
			continue
		}
		got := shown{
			l.ID, l.Name, string(l.AppendKey(nil, es)), l.Policy.Algorithm(), l.Policy.Limit(), l.Policy.Window(),
			l.Policy.Capacity(), l.Unit, l.UnitMultiplier, l.Rule.Mode, l.OnStoreFailure, l.Replaces,
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("Override(%s) -want +got\n%s", tt.entries, diff)
		}
	}
	if l := shop.Match(casetest.Entries("client=c")).Limits[0]; l.Policy.Limit() != 10 ||
		l.Policy.Window() != time.Second {
		t.Errorf("the rule's own limit became %d per %s", l.Policy.Limit(), l.Policy.Window())
	}
}

// A limit that a request carries keeps the rule's calendar if the calendar has its window.
func TestOverrideOfACalendar(t *testing.T) {
	shop := casetest.Compile(t, `{domain: shop, descriptors: [{key: client,
		rate_limit: {requests_per_unit: 10, unit: day, align: calendar, time_zone: Europe/Berlin}}]}`).Domain("shop")
	noon := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC).UnixMicro()
	for window, begins := range map[time.Duration]string{
		time.Minute:         "",
		time.Hour:           "2026-07-01T12:00:00Z",
		24 * time.Hour:      "2026-06-30T22:00:00Z",
		30 * 24 * time.Hour: "2026-06-30T22:00:00Z",
	} {
		l, err := shop.Override(shop.Match(casetest.Entries("client=c")), 7, window)
		if err != nil {
			t.Errorf("%s: %v", window, err)
			continue
		}
		got := ""
		if edges := limit.Edges(l.Policy, noon); edges != nil {
			got = time.UnixMicro(edges[1]).UTC().Format(time.RFC3339)
		}
		if got != begins {
			t.Errorf("the window of %s begins at %q, want %q", window, got, begins)
		}
	}
}

func TestOverrideErrors(t *testing.T) {
	shop := casetest.Compile(t, overrideRules).Domain("shop")
	for _, tt := range []struct {
		entries string
		rate    uint32
		window  time.Duration
		want    string
	}{
		{
			"spiky=1", 4, time.Second,
			"limit of 4 requests per 1s on spiky (sliding_window): segment_cap: must be at most the limit, 4, got 5",
		},
		{
			"none=1", 4, 0,
			"limit of 4 requests per 0s on (limit of the request) (fixed_window): " +
				"window: must be between 1ms and 87600h0m0s (10 years), got 0s",
		},
	} {
		_, err := shop.Override(shop.Match(casetest.Entries(tt.entries)), tt.rate, tt.window)
		if err == nil || err.Error() != tt.want {
			t.Errorf("Override(%s) gave\n %v, want\n %s", tt.entries, err, tt.want)
		}
	}
}
