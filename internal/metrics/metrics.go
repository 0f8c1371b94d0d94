// Package metrics counts what the process does, for Prometheus. It is the only package that knows Prometheus.
//
// Label values come from rule files, never from requests, so that the number of series is bounded by the number
// of rules. On a request's way nothing is looked up by name: a limit's counters are found by its ID.
package metrics

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	bridge "go.opentelemetry.io/contrib/bridges/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/guard"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

var _ decide.Observer = (*Metrics)(nil)

// Metrics are the process's counters and what they are gathered from. It is safe for concurrent use.
type Metrics struct {
	*limits   // weir_decisions_total and its like, and which rules are live
	*requests // weir_requests_total and weir_requests_rejected_total

	registry       *prometheus.Registry
	requestSeconds prometheus.Histogram
	takeSeconds    *prometheus.HistogramVec
	panics         prometheus.Counter
	storeTimeouts  prometheus.Counter
	storeNotAsked  prometheus.Counter
	storeErrors    prometheus.Counter
	loads          prometheus.Counter
	loadsRefused   prometheus.Counter
	refused        prometheus.Gauge
	rulesInfo      *prometheus.GaugeVec
	loadedAt       prometheus.Gauge
}

// Options say what was built and what is shown.
type Options struct {
	// Version, Commit and Go are of the binary.
	Version, Commit, Go string
	// MaxRules is how many rules have series of their own; the others share one.
	MaxRules int
	// NearLimitRatio is the part of a limit above which a hit is near it, from 0 to 1.
	NearLimitRatio float64
	// Classic adds the metrics of envoyproxy/ratelimit, by their names there.
	Classic bool
}

// New makes a registry of the process's own.
func New(o Options) *Metrics {
	storeErrors := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_store_errors_total",
		Help: "Requests that were answered without the store, by each rule's on_store_failure. reason: timeout (no answer, or no connection, in time), " +
			"not_asked (the breaker is open), other (an error).",
	}, []string{"reason"})
	loads := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_rules_loads_total",
		Help: "Loads of changed rule files. result: ok, refused.",
	}, []string{"result"})
	m := &Metrics{
		limits:   newLimits(o.MaxRules, o.NearLimitRatio),
		requests: newRequests(o.MaxRules),
		registry: prometheus.NewRegistry(),
		requestSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "weir_request_seconds",
			Help:    "Time from a decoded request to its response, errors included.",
			Buckets: seconds,
		}),
		takeSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "weir_store_take_seconds",
			Help: "Time that a request waited for Redis, errors included; renewals of leases, for which no request waits, are not in it. " +
				"A request that asks several stores counts under the store (several). Redis only.",
			Buckets: seconds,
		}, []string{"store"}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "weir_panics_total",
			Help: "Requests answered Internal because of a panic: bugs to report, with the log's stack.",
		}),
		storeTimeouts: storeErrors.WithLabelValues("timeout"),
		storeNotAsked: storeErrors.WithLabelValues("not_asked"),
		storeErrors:   storeErrors.WithLabelValues("other"),
		loads:         loads.WithLabelValues("ok"),
		loadsRefused:  loads.WithLabelValues("refused"),
		refused: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "weir_rules_refused",
			Help: "1 while the rules as they are now are refused and older ones are live, else 0: alert on it.",
		}),
		rulesInfo: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "weir_rules_info",
			Help: "1, with the content hash of the live rules as a label.",
		}, []string{"hash"}),
		loadedAt: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "weir_rules_last_load_timestamp_seconds",
			Help: "When the live rules went live; 0 while there are none.",
		}),
	}
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "weir_build_info",
		Help:        "1, with what was built as labels.",
		ConstLabels: prometheus.Labels{"version": o.Version, "commit": o.Commit, "go_version": o.Go},
	})
	info.Set(1)
	m.registry.MustRegister(info, m.limits, m.requests, m.requestSeconds, m.panics, storeErrors, loads, m.refused,
		m.rulesInfo, m.loadedAt,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if o.Classic {
		m.registry.MustRegister(newClassic(m))
	}
	return m
}

// seconds are finest around the deadlines: the store's 15 ms and Envoy's 20 ms.
var seconds = []float64{.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .015, .02, .05, .1, .5, 1}

// Handler answers a scrape.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
}

// Producer is the metrics for OpenTelemetry.
func (m *Metrics) Producer() metric.Producer {
	return bridge.NewMetricProducer(bridge.WithGatherer(m.registry))
}

// Requested reports a request's way through the service.
func (m *Metrics) Requested(took time.Duration) { m.requestSeconds.Observe(took.Seconds()) }

// RulesCompiled makes the set's counters the live ones; it is called just before the set goes live itself.
func (m *Metrics) RulesCompiled(set *descriptors.Set) {
	m.limits.RulesCompiled(set)
	m.compiled(set)
}

// Requests returns how many requests were answered.
func (m *Metrics) Requests() uint64 { return read(m.requestSeconds).GetHistogram().GetSampleCount() }

// Panicked reports a request that ended in a panic.
func (m *Metrics) Panicked() { m.panics.Inc() }

// StoreFailed reports a request that was answered without the store.
func (m *Metrics) StoreFailed(err error) {
	switch {
	case errors.Is(err, guard.ErrNotAsked):
		m.storeNotAsked.Inc()
	case redisstore.TimedOut(err):
		m.storeTimeouts.Inc()
	default:
		m.storeErrors.Inc()
	}
}

// WatchBreaker shows how much of the store is not asked, since it does not answer. It is called once, and open at every
// scrape.
func (m *Metrics) WatchBreaker(open func() int) error {
	return m.registry.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "weir_store_breaker_open",
		Help: "How many Redis servers, and masters of a Cluster, are not asked, since they do not answer. Redis only.",
	}, func() float64 { return float64(open()) }))
}

// Timed returns the store with its calls measured, by the names of its stores; "" is the first. It is called at most
// once, with at least one name. It is for a store behind a network: memory decides in less time than the clock takes to be read twice.
func (m *Metrics) Timed(store limiter.Store, names ...string) (limiter.Store, error) {
	t := &timed{Store: store, named: map[string]prometheus.Observer{}}
	for _, name := range names {
		t.several = m.takeSeconds.WithLabelValues(storeLabel(name))
		t.named[name] = t.several
	}
	if len(names) > 1 {
		t.several = m.takeSeconds.WithLabelValues(severalStores)
	}
	return t, m.registry.Register(m.takeSeconds)
}

// WatchDenials shows how many requests were answered by a known denial. It is called once, and answered at every
// scrape.
func (m *Metrics) WatchDenials(answered func() uint64) error {
	return m.registry.Register(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "weir_known_denials_total",
		Help: "Requests answered by a known denial: without Redis, which had denied the same before. Redis only.",
	}, func() float64 { return float64(answered()) }))
}

// severalStores labels a request that asks several; no name of a limit has parentheses.
const severalStores = "(several)"

type timed struct {
	limiter.Store
	named   map[string]prometheus.Observer
	several prometheus.Observer // the only one, if there is one
}

// Take implements limiter.Store.
func (t *timed) Take(ctx context.Context, hits []limiter.Hit, out []limiter.Decision) error {
	if guard.IsBackground(ctx) {
		return t.Store.Take(ctx, hits, out)
	}
	start := time.Now()
	err := t.Store.Take(ctx, hits, out)
	t.of(hits).Observe(time.Since(start).Seconds())
	return err
}

// of returns the histogram of the store that has the hits.
func (t *timed) of(hits []limiter.Hit) prometheus.Observer {
	if len(hits) == 0 {
		return t.several
	}
	name := hits[0].Policy.Store()
	for i := range hits {
		if hits[i].Policy.Store() != name {
			return t.several
		}
	}
	if one := t.named[name]; one != nil {
		return one
	}
	return t.several // a name that no store has: the call failed
}

// RulesLoaded reports that the rules of this content went live.
func (m *Metrics) RulesLoaded(hash string) {
	m.loads.Inc()
	m.refused.Set(0)
	m.rulesInfo.Reset()
	m.rulesInfo.WithLabelValues(hash).Set(1)
	m.loadedAt.SetToCurrentTime()
}

// RulesRestored reports that the files are again as what is live.
func (m *Metrics) RulesRestored() { m.refused.Set(0) }

// RulesRefused reports a load whose files were not good; what was live stays live.
func (m *Metrics) RulesRefused() {
	m.loadsRefused.Inc()
	m.refused.Set(1)
}
