// Package metric describes metrics and reads them at a scrape. A part of the process keeps its numbers, and its method
// Metrics returns them as groups: a line for each metric, with its name, labels, help and where the number comes from.
// The package knows no part.
package metric

import (
	"cmp"
	"iter"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-ratelimit/weir/internal/panics"
)

// Description is a metric as documentation shows it. Type is counter, gauge or histogram.
type Description struct {
	Name, Type, Help string
	Labels           []string
}

// Row is one metric: what it is, and how its series are written from S, the numbers of its source.
type Row[S any] struct {
	Description

	write func(S, Writer)
}

// Group is metrics with one source. Each part of the process has a method Metrics that returns its groups.
type Group interface {
	prometheus.Collector
	// Descriptions returns the metrics of the group.
	Descriptions() []Description
}

// Number is what a series may be.
type Number interface {
	~int | ~int64 | ~uint32 | ~uint64 | ~float64
}

// Counter returns a row with one series, which only grows.
func Counter[S any, N Number](name, help string, value func(S) N) Row[S] {
	return Counters(name, "", help, func(s S, w Writer) { Put(w, value(s)) })
}

// Gauge returns a row with one series, which goes up and down.
func Gauge[S any, N Number](name, help string, value func(S) N) Row[S] {
	return Gauges(name, "", help, func(s S, w Writer) { Put(w, value(s)) })
}

// Counters returns a row with a series for each combination of its labels' values. The labels are separated by spaces.
func Counters[S any](name, labels, help string, write func(S, Writer)) Row[S] {
	return Row[S]{Description{name, "counter", help, strings.Fields(labels)}, write}
}

// Gauges is Counters for gauges.
func Gauges[S any](name, labels, help string, write func(S, Writer)) Row[S] {
	return Row[S]{Description{name, "gauge", help, strings.Fields(labels)}, write}
}

// Histograms is Counters for histograms.
func Histograms[S any](name, labels, help string, write func(S, Writer)) Row[S] {
	return Row[S]{Description{name, "histogram", help, strings.Fields(labels)}, write}
}

// Writer writes the series of one metric during a scrape.
type Writer struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	to   chan<- prometheus.Metric
}

// Put writes the series that has these values of the row's labels, in the row's order.
func Put[N Number](w Writer, value N, labels ...string) {
	m, err := prometheus.NewConstMetric(w.desc, w.kind, float64(value), labels...)
	w.send(m, err)
}

// Histogram writes a series of count values up to the given bounds.
func (w Writer) Histogram(count uint64, sum float64, upTo map[float64]uint64, labels ...string) {
	m, err := prometheus.NewConstHistogram(w.desc, count, sum, upTo, labels...)
	w.send(m, err)
}

func (w Writer) send(m prometheus.Metric, err error) {
	if err != nil {
		m = prometheus.NewInvalidMetric(w.desc, err)
	}
	w.to <- m
}

// group is rows that read the same source.
type group[S any] struct {
	source  iter.Seq[S]
	rows    []Row[S]
	writers []Writer
}

// Of returns a group whose numbers read returns, at each scrape. It must be safe for concurrent use.
func Of[S any](read func() S, rows ...Row[S]) Group {
	return Each(func(yield func(S) bool) { yield(read()) }, rows...)
}

// Each returns a group whose metrics have series for each element of the source: for each store, limit, ...; none while
// the process has no such thing.
func Each[S any](source iter.Seq[S], rows ...Row[S]) Group {
	g := &group[S]{source: source, rows: rows}
	for _, r := range rows {
		w := Writer{desc: prometheus.NewDesc(r.Name, r.Help, r.Labels, nil), kind: prometheus.CounterValue}
		if r.Type == "gauge" {
			w.kind = prometheus.GaugeValue
		}
		g.writers = append(g.writers, w)
	}
	return g
}

// If yields what read returns, unless that is nil: the process has no such part.
func If[T any](read func() *T) iter.Seq[*T] {
	return func(yield func(*T) bool) {
		if part := read(); part != nil {
			yield(part)
		}
	}
}

// Describe implements prometheus.Collector.
func (g *group[S]) Describe(to chan<- *prometheus.Desc) {
	for _, w := range g.writers {
		to <- w.desc
	}
}

// Collect implements prometheus.Collector.
func (g *group[S]) Collect(to chan<- prometheus.Metric) {
	panics.Catch("metrics", func() { // the registry collects in goroutines of its own
		for s := range g.source {
			for i, w := range g.writers {
				w.to = to
				g.rows[i].write(s, w)
			}
		}
	})
}

// Descriptions implements Group.
func (g *group[S]) Descriptions() (all []Description) {
	for _, r := range g.rows {
		all = append(all, r.Description)
	}
	return all
}

// Measured is a histogram that requests fill. It implements Group.
type Measured struct {
	prometheus.Collector
	Description
}

// Descriptions implements Group.
func (m Measured) Descriptions() []Description { return []Description{m.Description} }

// Seconds returns the options of a histogram of times. Its bounds are finest around the deadlines: the store's 15 ms
// and Envoy's 20 ms.
func (d Description) Seconds() prometheus.HistogramOpts {
	return prometheus.HistogramOpts{
		Name: d.Name, Help: d.Help,
		Buckets: []float64{.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .015, .02, .05, .1, .5, 1},
	}
}

// Itself is for a source that is the number.
func Itself[N Number](n N) N { return n }

// OneIf returns 1 if is, else 0.
func OneIf(is bool) int {
	if is {
		return 1
	}
	return 0
}

// Store returns the label of a store by its name, "" for --store. No named store has parentheses in its name.
func Store(name string) string { return cmp.Or(name, "(default)") }
