package main

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// thisMachine describes the machine.
func thisMachine() string {
	return fmt.Sprintf("%s, %d CPUs, %s/%s, %s", cpuModel(), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH,
		runtime.Version())
}

func cpuModel() string {
	text, _ := os.ReadFile("/proc/cpuinfo") // if it fails, the model is unknown
	if m := regexp.MustCompile(`(?m)^model name\s*: (.+)$`).FindSubmatch(text); m != nil {
		return string(m[1])
	}
	return "unknown CPU"
}

// medians returns a sample with the median of each field; S must have only numbers.
func medians[S any](samples []S) (all S) {
	to := reflect.ValueOf(&all).Elem()
	for i := range to.NumField() {
		to.Field(i).SetFloat(medianOf(samples, func(s S) float64 { return reflect.ValueOf(s).Field(i).Float() }))
	}
	return all
}

func medianOf[S any](samples []S, f func(S) float64) float64 {
	values := make([]float64, len(samples))
	for i, s := range samples {
		values[i] = f(s)
	}
	return median(values)
}

// compared returns the median of f over pairs of a sample and the base of the same round, which ran under the same
// conditions. It returns "" without a base.
func compared(format string, samples, base []sample, f func(s, base sample) float64) string {
	if len(base) != len(samples) {
		return ""
	}
	values := make([]float64, len(samples))
	for i := range samples {
		values[i] = f(samples[i], base[i])
	}
	return fmt.Sprintf(format, median(values))
}

// median returns 0 for no values, and the mean of the middle two of an even number.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	mid := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[mid]
	}
	return (sorted[mid-1] + sorted[mid]) / 2
}

// markdown returns a table per scenario.
func (b *bench) markdown() string {
	var w strings.Builder
	fmt.Fprintf(&w, "%s. Medians of %d interleaved rounds of %s; %d requests outstanding over %d connections; %s.\n",
		thisMachine(), b.Rounds, b.Duration, b.Concurrency, b.Connections, b.Algorithm)
	for _, s := range b.scenarios {
		fmt.Fprintf(&w, "\n%s: %s%s\n\n", s.name, s.w.about, map[bool]string{true: "; one request outstanding"}[s.oneByOne])
		fmt.Fprint(&w, "| | req/s | p50 us | p99 us | p99.9 us | CPU us server + Redis | calls to Redis | denied |"+
			" CPU / no-op | p50 / no-op | p99.9 / no-op | others' CPU |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n")
		base := b.samples[sampled{s.name, nameNoop}]
		for _, t := range b.targets {
			rounds := b.samples[sampled{s.name, t.name}]
			row := medians(rounds)
			ratio := func(f func(s sample) float64) string {
				return compared("%.2f", rounds, base, func(s, base sample) float64 { return f(s) / f(base) })
			}
			fmt.Fprintf(&w, "| %s | %.0f | %.0f | %.0f | %.0f | %.1f + %.1f | %.4g | %.1f %% | %s | %s | %s | %.0f %% |\n",
				t.name, row.ReqPerSec, row.P50, row.P99, row.P999, row.Server, row.Redis, row.Calls, 100*row.Denied,
				ratio(func(s sample) float64 { return s.Server + s.Redis }), ratio(func(s sample) float64 { return s.P50 }),
				ratio(func(s sample) float64 { return s.P999 }), 100*row.Others)
		}
	}
	return w.String()
}
