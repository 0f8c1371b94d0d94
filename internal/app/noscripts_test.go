package app

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/redistest"
)

// What goes with a store without scripts is said when the flags are checked.
func TestFlagsWithoutScripts(t *testing.T) {
	for _, tt := range []struct {
		change func(o *Options)
		want   string
	}{
		{func(o *Options) { o.Store, o.StoreScripts = "redis://h", false }, ""},
		{func(o *Options) { o.Store = "redis://h?scripts=false" }, ""},
		{
			func(o *Options) { o.StoreScripts = false },
			"--no-store-scripts: is about Redis; add --store redis://host:6379/0, or leave it out for counters in memory",
		},
		{
			func(o *Options) { o.Store, o.Rules = "redis://h?scripts=false", []string{rulesStore} },
			"--rules: store is the rules in Redis: it needs more of Redis than --no-store-scripts or scripts=false lets Weir send",
		},
	} {
		o := options(t, rulesOf("1"))
		tt.change(&o)
		err := o.Check()
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("got %v, want %q", err, tt.want)
		}
	}
}

// Rules that need scripts are refused with their place, for the stores without them alone.
func TestRulesWithoutScripts(t *testing.T) {
	first, second := redistest.Start(t), redistest.Start(t)
	o := options(t, `
domain: shop
descriptors:
  - {key: plain, rate_limit: {requests_per_unit: 5, unit: minute}}
  - {key: full, rate_limit: {algorithm: funnel, requests_per_unit: 5, unit: minute, store: full}}
`)
	o.Store, o.StoreScripts = first.URL(), false
	o.NamedStores = map[string]string{"full": second.URL() + "?scripts=true"}
	start(t, o)
	o = options(t, `
domain: shop
descriptors:
  - {key: plain, rate_limit: {algorithm: funnel, requests_per_unit: 5, unit: minute}}
`)
	o.Store, o.StoreScripts, o.Log = first.URL(), false, slog.New(slog.DiscardHandler)
	a, err := New(t.Context(), o)
	if err == nil {
		_ = a.Close()
	}
	if err == nil || !strings.Contains(err.Error(), ":4:42: algorithm: funnel needs scripts, and this limit's store runs none") {
		t.Errorf("got %v", err)
	}
}
