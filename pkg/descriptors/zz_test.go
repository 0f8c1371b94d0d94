package descriptors_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
)

func BenchmarkLoadFlow(b *testing.B) {
	var s strings.Builder
	s.WriteString("domain: x\ndescriptors:\n")
	for i := range 100_000 {
		fmt.Fprintf(&s, "  - key: d0_%d\n    rate_limit: {requests_per_unit: 4000000000, unit: hour}\n", i)
	}
	files := []descriptors.File{{Name: "rules.yaml", Data: []byte(s.String())}}
	b.ReportAllocs()
	var set *descriptors.Set
	for b.Loop() {
		set, _ = descriptors.Compile(files)
	}
	var m runtime.MemStats
	files = nil
	runtime.GC()
	runtime.ReadMemStats(&m)
	b.ReportMetric(float64(m.HeapAlloc)/1e6, "MB")
	runtime.KeepAlive(set)
}
