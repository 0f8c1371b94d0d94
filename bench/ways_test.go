package main

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/weirtest"
)

// TestWaysThroughEnvoy asks a Weir over a Unix socket, and has Weirs assign quotas to Envoys.
func TestWaysThroughEnvoy(t *testing.T) {
	fewKeys(t)
	o := &options{
		ways: true, weir: weirtest.Binary(t), storeTimeout: time.Second,
		settings: quickSettings,
	}
	var table strings.Builder
	if err := o.throughEnvoy(t.Context(), t.TempDir(), nil, &table, io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"\n| no filter | ", "\n| Weir, memory, Unix socket | ", "\n| Weir's quotas, 1 bucket | ",
		"\n| Weir's quotas, 100 buckets by a header | ",
	} {
		if strings.Count(table.String(), want) != 2 {
			t.Errorf("the table has not %q with 4 outstanding and with 1:\n%s", want, table.String())
		}
	}
	if want := "\nQuotas of 1,000 buckets in one Envoy with "; strings.Count(table.String(), want) != 1 {
		t.Errorf("there is not one %q:\n%s", want, table.String())
	}
}

// TestNoQuotaWasAssigned says so: the Envoy asks a Weir whose rules are of another domain.
func TestNoQuotaWasAssigned(t *testing.T) {
	fewKeys(t)
	other := workloads[0]
	other.name = "other"
	o := &options{weir: weirtest.Binary(t), storeTimeout: time.Second, settings: settings{Algorithm: "fixed_window"}}
	fronts, err := o.startWays(t.Context(), t.TempDir(), &other)
	for _, f := range fronts {
		t.Cleanup(f.service.stop)
	}
	if err != nil {
		t.Fatal(err)
	}
	const want = "no quota was assigned"
	if err := fronts[1].check(t.Context()); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
}
