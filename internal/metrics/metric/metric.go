// Package metric describes metrics and reads them at a scrape. Each part of the process keeps its numbers. Its method
// Metrics returns groups with a row per metric: name, labels, help and source.
package metric

import (
	"cmp"
	"iter"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-ratelimit/weir/internal/panics"
)

// Description is a metric in the documentation. Type is counter, gauge or histogram.
type Description struct {
	Name, Type, Help string
	Labels           []string
}

// Row is one metric: its description, and a function that writes its series from the numbers S of its source.
type Row[S any] struct {
	Description

	write func(S, Writer)
}

// Group is a set of metrics with one source.
type Group interface {
	prometheus.Collector
	// Descriptions returns the metrics of the group.
	Descriptions() []Description
}

// Number is the type of a series' value.
type Number interface {
	~int | ~int64 | ~uint32 | ~uint64 | ~float64
}

// Counter returns a row with one series that only grows.
func Counter[S any, N Number](name, help string, value func(S) N) Row[S] {
	return Counters(name, "", help, func(s S, w Writer) { Put(w, value(s)) })
}

// Gauge returns a row with one series that may rise and fall.
func Gauge[S any, N Number](name, help string, value func(S) N) Row[S] {
	return Gauges(name, "", help, func(s S, w Writer) { Put(w, value(s)) })
}

// Counters returns a row with a series per combination of label values. labels is separated by spaces.
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

// Put writes the series with these label values, in the order of the row's labels.
func Put[N Number](w Writer, value N, labels ...string) {
	m, err := prometheus.NewConstMetric(w.desc, w.kind, float64(value), labels...)
	w.send(m, err)
}

// Histogram writes a series with count values and their sum; upTo has the cumulative counts by upper bound.
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

// group has rows that read the same source.
type group[S any] struct {
	source  iter.Seq[S]
	rows    []Row[S]
	writers []Writer
}

// Of returns a group that calls read at each scrape. read must be safe for concurrent use.
func Of[S any](read func() S, rows ...Row[S]) Group {
	return Each(func(yield func(S) bool) { yield(read()) }, rows...)
}

// Each returns a group whose metrics have series per element of the source, such as a store or limit.
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

// If yields the result of read unless it is nil.
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
	panics.Catch("metrics", func() { // the registry collects in its own goroutines
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

// Seconds returns the options of a histogram of times, finest near the timeouts of the store, 15 ms, and Envoy, 20 ms.
func (d Description) Seconds() prometheus.HistogramOpts {
	return prometheus.HistogramOpts{
		Name: d.Name, Help: d.Help,
		Buckets: []float64{.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .015, .02, .05, .1, .5, 1},
	}
}

// Itself is the value function for a source that is a number.
func Itself[N Number](n N) N { return n }

// OneIf returns 1 if is, else 0.
func OneIf(is bool) int {
	if is {
		return 1
	}
	return 0
}

// Store returns the label of a store by its name, or of --store for "". Names of stores have no parentheses.
func Store(name string) string { return cmp.Or(name, "(default)") }
