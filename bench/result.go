package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"
)

// row is a target in a scenario: medians over the rounds.
type row struct {
	Scenario string `json:"scenario"`
	Target   string `json:"target"`
	sample
	// Ratios to the no-op server of the same round; 0 without one.
	CPURatio  float64  `json:"cpu_ratio,omitempty"` // server and Redis
	P50Ratio  float64  `json:"p50_ratio,omitempty"`
	P999Ratio float64  `json:"p999_ratio,omitempty"`
	Rounds    []sample `json:"rounds"`
}

// report is what is written as JSON.
type report struct {
	Machine  machine  `json:"machine"`
	Settings settings `json:"settings"`
	Rows     []row    `json:"rows"`
}

// machine is where it was measured.
type machine struct {
	CPU  string `json:"cpu"`
	CPUs int    `json:"cpus"`
	OS   string `json:"os"`
	Go   string `json:"go"`
}

func (m machine) String() string {
	return fmt.Sprintf("%s, %d CPUs, %s, %s", m.CPU, m.CPUs, m.OS, m.Go)
}

func thisMachine() machine {
	return machine{CPU: cpuModel(), CPUs: runtime.NumCPU(), OS: runtime.GOOS + "/" + runtime.GOARCH, Go: runtime.Version()}
}

func cpuModel() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return "unknown CPU"
	}
	defer f.Close() //nolint:errcheck // only read from
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if name, model, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(model)
		}
	}
	return "unknown CPU"
}

// report sums up the samples.
func (b *bench) report() report {
	r := report{Machine: thisMachine(), Settings: b.settings}
	for _, s := range b.scenarios {
		base := b.samples[s.name][nameNoop]
		for _, t := range b.targets {
			r.Rows = append(r.Rows, newRow(s.name, t.name, b.samples[s.name][t.name], base))
		}
	}
	return r
}

func newRow(scenario, target string, rounds, base []sample) row {
	r := row{Scenario: scenario, Target: target, Rounds: rounds, sample: medians(rounds)}
	if len(base) == len(rounds) {
		r.CPURatio = medianRatio(rounds, base, func(s sample) float64 { return s.Server + s.Redis })
		r.P50Ratio = medianRatio(rounds, base, func(s sample) float64 { return s.P50 })
		r.P999Ratio = medianRatio(rounds, base, func(s sample) float64 { return s.P999 })
	}
	return r
}

// medians returns the median of each number of the samples, which have nothing else.
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

// medianRatio is the median of each round's ratio to the base of that round, in which both had the same
// neighbours on the machine.
func medianRatio(samples, base []sample, f func(sample) float64) float64 {
	ratios := make([]float64, len(samples))
	for i := range samples {
		ratios[i] = f(samples[i]) / f(base[i])
	}
	return median(ratios)
}

// median is 0 of nothing, and the mean of the two in the middle of an even number.
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

// markdown writes one table a scenario.
func (r *report) markdown(w io.Writer) {
	fmt.Fprintf(w, "%s. Medians of %d interleaved rounds of %s; %d requests outstanding over %d connections; %s.\n",
		r.Machine, r.Settings.Rounds, r.Settings.Duration, r.Settings.Concurrency, r.Settings.Connections,
		r.Settings.Algorithm)
	scenario := ""
	for _, row := range r.Rows {
		if row.Scenario != scenario {
			scenario = row.Scenario
			fmt.Fprintf(w, "\n%s: %s\n\n", scenario, describe(scenario))
			fmt.Fprint(w, "| | req/s | p50 us | p99 us | p99.9 us | CPU us server + Redis | calls to Redis | denied |"+
				" CPU / no-op | p50 / no-op | p99.9 / no-op | others' CPU |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n")
		}
		fmt.Fprintf(w, "| %s | %.0f | %.0f | %.0f | %.0f | %.1f + %.1f | %.4g | %.1f %% | %s | %s | %s | %.0f %% |\n",
			row.Target, row.ReqPerSec, row.P50, row.P99, row.P999, row.Server, row.Redis, row.Calls, 100*row.Denied,
			ratio(row.CPURatio), ratio(row.P50Ratio), ratio(row.P999Ratio), 100*row.Others)
	}
}

// describe says what a scenario is.
func describe(name string) string {
	s, err := parseScenario(name)
	if err != nil {
		return name
	}
	return s.w.about + map[shape]string{
		oneByOne: "; one request outstanding", openLoop: "; open loop at half of the rate of " + nameClosed,
	}[s.shape]
}

func ratio(v float64) string {
	if v == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f", v)
}
