package metrics

import (
	"cmp"
	"iter"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/conns"
	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/guard"
	"github.com/weir-ratelimit/weir/internal/logging"
	"github.com/weir-ratelimit/weir/internal/panics"
	"github.com/weir-ratelimit/weir/internal/rlqs"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// Description is a metric as documentation shows it. Type is counter, gauge or histogram.
type Description struct {
	Name, Type, Help string
	Labels           []string
}

// row is one metric of the table: what it is, and how its series are written from S, the numbers of its source.
type row[S any] struct {
	Description
	write func(S, writer)
}

type number interface {
	~int | ~int64 | ~uint64 | ~float64
}

// counter is a row with one series, which only grows.
func counter[S any, N number](name, help string, value func(S) N) row[S] {
	return counters(name, "", help, func(s S, w writer) { put(w, value(s)) })
}

// gauge is a row with one series, which goes up and down.
func gauge[S any, N number](name, help string, value func(S) N) row[S] {
	return gauges(name, "", help, func(s S, w writer) { put(w, value(s)) })
}

// counters is a row with a series for each combination of its labels' values. The labels are separated by spaces.
func counters[S any](name, labels, help string, write func(S, writer)) row[S] {
	return row[S]{Description{name, "counter", help, strings.Fields(labels)}, write}
}

// gauges is counters, of gauges.
func gauges[S any](name, labels, help string, write func(S, writer)) row[S] {
	return row[S]{Description{name, "gauge", help, strings.Fields(labels)}, write}
}

// histograms is counters, of histograms.
func histograms[S any](name, labels, help string, write func(S, writer)) row[S] {
	return row[S]{Description{name, "histogram", help, strings.Fields(labels)}, write}
}

// writer writes the series of one metric during a scrape.
type writer struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	to   chan<- prometheus.Metric
}

// put writes the series that has these values of the row's labels, in the row's order.
func put[N number](w writer, value N, labels ...string) {
	m, err := prometheus.NewConstMetric(w.desc, w.kind, float64(value), labels...)
	w.send(m, err)
}

// histogram writes a series of count values up to the given bounds.
func (w writer) histogram(count uint64, sum float64, upTo map[float64]uint64, labels ...string) {
	m, err := prometheus.NewConstHistogram(w.desc, count, sum, upTo, labels...)
	w.send(m, err)
}

func (w writer) send(m prometheus.Metric, err error) {
	if err != nil {
		m = prometheus.NewInvalidMetric(w.desc, err)
	}
	w.to <- m
}

// group is rows of the table that read the same source. It implements prometheus.Collector.
type group[S any] struct {
	source  iter.Seq[S] // yields once for each store, limit, ...; not at all while the process has none
	rows    []row[S]
	writers []writer
}

func newGroup[S any](source iter.Seq[S], rows ...row[S]) *group[S] {
	g := &group[S]{source: source, rows: rows}
	for _, r := range rows {
		w := writer{desc: prometheus.NewDesc(r.Name, r.Help, r.Labels, nil), kind: prometheus.CounterValue}
		if r.Type == "gauge" {
			w.kind = prometheus.GaugeValue
		}
		g.writers = append(g.writers, w)
	}
	return g
}

func (g *group[S]) Describe(to chan<- *prometheus.Desc) {
	for _, w := range g.writers {
		to <- w.desc
	}
}

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

func (g *group[S]) describe() (all []Description) {
	for _, r := range g.rows {
		all = append(all, r.Description)
	}
	return all
}

// measured is a histogram that requests fill.
type measured struct {
	prometheus.Collector
	description Description
}

func (m measured) describe() []Description { return []Description{m.description} }

// seconds are the options of a histogram of times. Its bounds are finest around the deadlines: the store's 15 ms and
// Envoy's 20 ms.
func seconds(d Description) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{
		Name: d.Name, Help: d.Help,
		Buckets: []float64{.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .015, .02, .05, .1, .5, 1},
	}
}

// Source is a part of the process whose numbers are read at each scrape. Its metrics are missing until From is called.
type Source[S any] struct{ read atomic.Pointer[func() S] }

// From names the function that returns the numbers. The function must be safe for concurrent use.
func (s *Source[S]) From(read func() S) { s.read.Store(&read) }

func (s *Source[S]) now(yield func(S) bool) {
	if read := s.read.Load(); read != nil {
		yield((*read)())
	}
}

// each yields the elements of a source that is a list.
func each[S any](s *Source[[]S]) iter.Seq[S] {
	return func(yield func(S) bool) {
		for list := range s.now {
			slices.Values(list)(yield)
		}
	}
}

// only yields s.
func only[S any](s S) iter.Seq[S] { return func(yield func(S) bool) { yield(s) } }

// Sources are the parts of the process that the table reads.
type Sources struct {
	Clients      Source[[]ClientStats]
	ClientMemory Source[int64] // of what waits for clients, in bytes
	WrongTokens  atomic.Uint64 // of HTTP requests

	Handshakes Source[map[string]uint64] // TLS handshakes that failed, by listener
	Delayed    Source[decide.DelayedStats]
	HungReads  Source[int] // reads of files that have not returned
	Log        Source[logging.QueueStats]
	Published  Source[*adminapi.PublishedStatus]
	Quotas     Source[rlqs.Stats]
	XDS        Source[*adminapi.XDSStatus]

	Breaker Source[int]    // Redis servers that Weir has stopped querying
	Denials Source[uint64] // requests that cached denials answered
	Leases  Source[guard.LeaseStats]
	Memory  Source[MemoryStats]
	Policy  Source[map[string]time.Duration] // how long the failure policy has decided, by the store's name
	Stores  Source[[]StoreStats]
}

// ClientStats is what one listener has seen of its clients.
type ClientStats struct {
	Listener string // grpc or http
	conns.Stats
}

// MemoryStats is the state of the memory store.
type MemoryStats struct {
	memstore.Stats
	MaxKeys int
}

// StoreStats is what one Redis store has done.
type StoreStats struct {
	Name string // of the named store; empty for --store
	redisstore.Stats
}

// Describe returns every metric that there can be, by name, including those of the Go runtime and the process.
func Describe() ([]Description, error) {
	m := New(Options{Classic: true})
	var all []Description
	for _, g := range append(m.table(), m.classicMetrics()...) {
		all = append(all, g.describe()...)
	}
	families, err := m.registry.Gather()
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), "go_") || strings.HasPrefix(f.GetName(), "process_") {
			d := Description{Name: f.GetName(), Type: strings.ToLower(f.GetType().String()), Help: f.GetHelp()}
			for _, l := range f.GetMetric()[0].GetLabel() { // all series have the same labels
				d.Labels = append(d.Labels, l.GetName())
			}
			all = append(all, d)
		}
	}
	slices.SortFunc(all, func(a, b Description) int { return cmp.Compare(a.Name, b.Name) })
	return all, err
}
