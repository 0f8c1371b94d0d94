package descriptors_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/descriptors/rulefile"
)

// withoutScripts compiles a limit of the domain shop for a process whose stores run no scripts, but for "full".
func withoutScripts(limit string) (*descriptors.Set, error) {
	process := descriptors.Process{NoScripts: func(store string) bool { return store != "full" }}
	return rulefile.CompileFor(process, []rulefile.File{{
		Name: "shop.yaml", Data: []byte("domain: shop\ndescriptors:\n  - {key: client, rate_limit: " + limit + "}\n"),
	}})
}

func TestLimitsOfAStoreWithoutScripts(t *testing.T) {
	for limit, want := range map[string]string{
		"{requests_per_unit: 5, unit: minute}":                                              "",
		"{requests_per_unit: 5, unit: month, align: calendar, time_zone: Europe/Berlin}":    "",
		"{requests_per_unit: 5, window: 90s, charge_denied: full}":                          "",
		"{algorithm: funnel, requests_per_unit: 5, unit: second, store: full}":              "",
		"{requests_per_unit: 5, unit: minute, align: first_hit, store: full}":               "",
		"{algorithm: funnel, requests_per_unit: 5, unit: second}":                           "shop.yaml:3:43: algorithm: funnel needs scripts, and this limit's store runs none (--no-store-scripts); write fixed_window, or store: with the name of a store that runs scripts",
		"{algorithm: concurrency, requests_per_unit: 5}":                                    "shop.yaml:3:43: algorithm: concurrency needs scripts",
		"{algorithm: token_bucket, requests_per_unit: 5, unit: second, engine: redis_cell}": "shop.yaml:3:43: algorithm: token_bucket needs scripts",
		"{requests_per_unit: 5, unit: minute, align: first_hit}":                            "shop.yaml:3:75: align: windows that begin with the first hit need scripts, and this limit's store runs none (--no-store-scripts); write epoch or calendar",
		"{requests_per_unit: 5, unit: minute, charge_denied: none}":                         "shop.yaml:3:83: charge_denied: a store without scripts (--no-store-scripts) charges a denied request in full; write full, or leave it out",
		"{requests_per_unit: 5, unit: minute, charge_denied: remaining}":                    "shop.yaml:3:83: charge_denied: a store without scripts",
		"{requests_per_unit: 5, unit: minute, consistency: leased}":                         "shop.yaml:3:81: lease_for: permits of a store without scripts (--no-store-scripts) cannot be leased; write consistency: strict",
		"{requests_per_unit: 5, unit: minute, align: first_hit, charge_denied: none}":       "shop.yaml:3:101: charge_denied: a store without scripts",
	} {
		_, err := withoutScripts(limit)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s:\n got %v\nwant %s", limit, err, want)
		}
	}
}

// A limit that a request brings along is checked as well: it may be counted in another store than the rule's.
func TestOverrideInAStoreWithoutScripts(t *testing.T) {
	process := descriptors.Process{
		PerSecondStore: "per_second", NoScripts: func(store string) bool { return store == "per_second" },
	}
	set, err := rulefile.CompileFor(process, []rulefile.File{{
		Name: "shop.yaml", Data: []byte("domain: shop\ndescriptors:\n" +
			"  - {key: client, rate_limit: {algorithm: funnel, requests_per_unit: 5, unit: minute}}\n"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	entries := []descriptors.Entry{{Key: "client", Value: "ann"}}
	if _, err := set.Domain("shop").Override(entries, 7, time.Minute); err != nil {
		t.Error(err)
	}
	_, err = set.Domain("shop").Override(entries, 7, time.Second)
	if err == nil || !strings.Contains(err.Error(), "algorithm: funnel needs scripts") {
		t.Errorf("an override that moves to a store without scripts: %v", err)
	}
}

// The limit of a counter is found by its key, whether that names a window or not.
func TestLimitOfKey(t *testing.T) {
	set, err := rulefile.CompileFor(descriptors.Process{}, []rulefile.File{{Name: "shop.yaml", Data: []byte(`
domain: shop
descriptors:
  - key: client
    rate_limits:
      - {name: minute, requests_per_unit: 5, unit: minute}
      - {name: day, requests_per_unit: 50, unit: day}
  - key: address
    cidr: ['2001:db8::/32']
    rate_limit: {requests_per_unit: 5, unit: minute}
`)}})
	if errs := (descriptors.Errors{}); errors.As(err, &errs) {
		t.Fatal(errs)
	}
	for _, window := range []string{"", "|@1785024000+60"} {
		if l := set.LimitOf("fixed_window:day|shop|client=ann" + window); l == nil || l.Name != "day" {
			t.Errorf("%q: the limit is %+v", window, l)
		}
		for _, key := range []string{"rules", "fixed_window|shop|client=ann", "fixed_window:day|shop|other=x", "fixed_window|x|y=z"} {
			if l := set.LimitOf(key + window); l != nil {
				t.Errorf("%s: the limit is %+v", key+window, l)
			}
		}
		got := set.CanonicalKey("fixed_window|shop|address=2001:DB8::0:1" + window)
		if want := "fixed_window|shop|address=2001:db8::1" + window; got != want {
			t.Errorf("CanonicalKey is %s, want %s", got, want)
		}
	}
}
