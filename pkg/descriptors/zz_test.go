package descriptors_test

import (
	"fmt"
	"runtime"
	"strings"
	"syscall"
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
	var before, after syscall.Rusage
	syscall.Getrusage(0, &before)
	for b.Loop() {
		set, _ = descriptors.Compile(files)
	}
	syscall.Getrusage(0, &after)
	b.ReportMetric(float64(after.Utime.Nano()+after.Stime.Nano()-before.Utime.Nano()-before.Stime.Nano())/1e6/float64(b.N), "cpu-ms")
	var m runtime.MemStats
	files = nil
	runtime.GC()
	runtime.ReadMemStats(&m)
	b.ReportMetric(float64(m.HeapAlloc)/1e6, "MB")
	runtime.KeepAlive(set)
}
