package main

import (
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/moduletest"
)

// quickSettings are settings that measure nothing well.
var quickSettings = settings{
	Rounds: 1, Duration: 50 * time.Millisecond, WarmUp: time.Millisecond, Concurrency: 4, Connections: 1,
	Algorithm: "fixed_window",
}

// TestModuleThroughEnvoy measures Weir inside a real Envoy, with counters in memory and in Redis.
func TestModuleThroughEnvoy(t *testing.T) {
	fewKeys(t)
	o := &options{
		module: filepath.Join(moduletest.Folder(t), moduleFile), storeTimeout: time.Second,
		settings: quickSettings,
	}
	var table strings.Builder
	if err := o.throughEnvoy(t.Context(), t.TempDir(), nil, &table, io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\n| no filter | ", "\n| Weir inside Envoy, memory | ", "\n| Weir inside Envoy, redis | "} {
		if strings.Count(table.String(), want) != 2 {
			t.Errorf("the table has not %q with 4 outstanding and with 1:\n%s", want, table.String())
		}
	}
}

// TestModuleIsWrong names what is wrong with the file of the module.
func TestModuleIsWrong(t *testing.T) {
	for path, want := range map[string]string{
		"bin/weir.so":                "the file must be named libweir.so",
		"/no/such/folder/libweir.so": "make module builds it",
	} {
		o := &options{module: path}
		_, err := o.startModules(t.Context(), t.TempDir(), &workloads[0])
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", path, err, want)
		}
	}
}

// TestSumSeries adds up series of one counter, and of no other.
func TestSumSeries(t *testing.T) {
	const text = "# TYPE x_total counter\nx_total{code=\"ok\",d=\"a\"} 3\nx_total{code=\"over\",d=\"a\"} 4\n" +
		"x_total{code=\"ok\",d=\"b\"} 1e+06\nx_total_y{code=\"ok\"} 9\n"
	if n, err := sumSeries(text, "x_total", `code="ok"`); n != 1_000_003 || err != nil {
		t.Errorf("sum %d, %v; want 1000003", n, err)
	}
	if _, err := sumSeries(text, "y_total", ""); err == nil {
		t.Error("a counter that is not there has a sum")
	}
}
