// Package metrics counts decisions, and exports them and the metrics of all parts to Prometheus and statsd.
//
// Label values come from rule files, never from requests, so the number of rules bounds the number of series. A request
// finds its counters by the limit's ID.
package metrics

import (
	"cmp"
	"errors"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc/codes"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/flags"
	"github.com/weir-ratelimit/weir/internal/guard"
	"github.com/weir-ratelimit/weir/internal/limit"
	"github.com/weir-ratelimit/weir/internal/metrics/metric"
	"github.com/weir-ratelimit/weir/internal/take"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

var _ decide.Observer = (*Metrics)(nil)

// Metrics counts decisions and exports the metrics of all parts. It is safe for concurrent use.
type Metrics struct {
	o        Options
	registry *prometheus.Registry
	classic  *prometheus.Registry // the metrics of envoyproxy/ratelimit
	all      []metric.Description // descriptions of both registries' metrics

	counts         *ruleCounts
	requestSeconds prometheus.Histogram
	takeSeconds    *prometheus.HistogramVec // histograms by store

	sampling sync.Mutex // held by Sample
	panics   atomic.Uint64
	// Requests that Envoys reported, and the part of them that Sample has returned.
	allowedByEnvoys, deniedByEnvoys atomic.Uint64
	sampledByEnvoys                 adminapi.Counts

	rejected    [codes.Unauthenticated + 1]atomic.Uint64 // requests that failed with a gRPC error, by code
	storeErrors struct{ timeout, breakerOpen, unreachable, answered, late atomic.Uint64 }
	abandoned   atomic.Uint64 // requests whose callers timed out
}

// Options are the flags of metrics, and the build.
type Options struct {
	Build adminapi.Build `kong:"-"`
	// MaxRules is the maximum number of rules, and of domains, with their own series. All others share one series.
	MaxRules int `name:"metrics-max-rules" env:"WEIR_METRICS_MAX_RULES" default:"10000" help:"Maximum number of rules with their own series in GET /metrics; others count together as (other)."`
	// NearLimitRatio is the part of a limit, from 0 to 1, above which a hit is near the limit.
	NearLimitRatio float64 `env:"WEIR_NEAR_LIMIT_RATIO" default:"0.8" help:"Part of a limit above which an allowed hit counts as near the limit."`
	// Classic adds the metrics of envoyproxy/ratelimit to Handler.
	Classic bool `name:"classic-metrics" env:"WEIR_CLASSIC_METRICS" help:"Add metrics under the names of envoyproxy/ratelimit (ratelimit_service_rate_limit_total_hits, ...)."`
}

// Check checks the flags.
func (o *Options) Check(e *flags.Errors) {
	flags.Between(e, "--metrics-max-rules", o.MaxRules, 0, 1_000_000)
	flags.Between(e, "--near-limit-ratio", o.NearLimitRatio, 0, 1)
}

// New returns the metrics of a process, in their own registry.
func New(o Options) *Metrics {
	m := &Metrics{
		o: o, registry: prometheus.NewRegistry(), classic: prometheus.NewRegistry(),
		counts:         newCounts(o.MaxRules, o.NearLimitRatio),
		requestSeconds: prometheus.NewHistogram(requestSecondsRow.Seconds()),
		takeSeconds:    prometheus.NewHistogramVec(takeSecondsRow.Seconds(), takeSecondsRow.Labels),
	}
	m.Add(slices.Concat(m.requestMetrics(), m.failureMetrics(), m.processMetrics(), m.classicMetrics())...)
	m.registry.MustRegister(
		collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics( // how long goroutines wait for a CPU
			collectors.GoRuntimeMetricsRule{Matcher: regexp.MustCompile(`^/sched/latencies:seconds$`)})),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return m
}

// Add adds the metrics of a part. Metrics of envoyproxy/ratelimit go to Classic.
func (m *Metrics) Add(groups ...metric.Group) {
	for _, g := range groups {
		described := g.Descriptions()
		m.all = append(m.all, described...)
		isClassic := strings.HasPrefix(described[0].Name, "ratelimit_")
		if isClassic {
			m.classic.MustRegister(g)
		}
		if !isClassic || m.o.Classic {
			m.registry.MustRegister(g)
		}
	}
}

// Describe returns all metrics, sorted by name.
func (m *Metrics) Describe() []metric.Description {
	byName := func(a, b metric.Description) int { return cmp.Compare(a.Name, b.Name) }
	return slices.SortedFunc(slices.Values(m.all), byName)
}

// Handler serves a scrape.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
}

// Classic returns the metrics of envoyproxy/ratelimit.
func (m *Metrics) Classic() prometheus.Gatherer { return m.classic }

// Requested counts a request with its duration.
func (m *Metrics) Requested(took time.Duration) { m.requestSeconds.Observe(took.Seconds()) }

// Abandoned counts a request whose caller timed out.
func (m *Metrics) Abandoned() { m.abandoned.Add(1) }

// Requests returns the number of completed requests.
func (m *Metrics) Requests() uint64 { return m.requestHistogram().GetSampleCount() }

// requestHistogram returns the histogram of request times, or nil, which is empty, on error.
func (m *Metrics) requestHistogram() *dto.Histogram {
	var now dto.Metric
	if m.requestSeconds.Write(&now) != nil {
		return nil
	}
	return now.GetHistogram()
}

// Panicked counts a panic that the process survived.
func (m *Metrics) Panicked() { m.panics.Add(1) }

// Rejected counts a request that failed with a gRPC error.
func (m *Metrics) Rejected(code codes.Code) {
	if int(code) >= len(m.rejected) {
		code = codes.Unknown
	}
	m.rejected[code].Add(1)
}

// StoreFailed implements decide.Observer.
func (m *Metrics) StoreFailed(err error) {
	switch {
	case errors.Is(err, limiter.ErrLate):
		m.storeErrors.late.Add(1)
	case errors.Is(err, guard.ErrBreakerOpen):
		m.storeErrors.breakerOpen.Add(1)
	case redisstore.Answered(err):
		m.storeErrors.answered.Add(1)
	case redisstore.TimedOut(err):
		m.storeErrors.timeout.Add(1)
	default:
		m.storeErrors.unreachable.Add(1)
	}
}

// Timed measures calls to the stores of these names; "" is --store. It is for stores behind a network, because for a
// decision in memory reading the clock would take longer than the decision.
func (m *Metrics) Timed(names ...string) take.Stage {
	t := timed{}
	for _, name := range names {
		t[name] = m.takeSeconds.WithLabelValues(metric.Store(name))
	}
	return t
}

// timed has the histograms by names of stores.
type timed map[string]prometheus.Observer

// Before implements take.Stage.
func (timed) Before(c *take.Call) (answered bool) {
	c.Began = time.Now()
	return false
}

// After implements take.Stage. It does not measure calls for which no request waits.
func (t timed) After(c *take.Call) {
	if len(c.Hits) == 0 || guard.IsBackground(c.Ctx) {
		return
	}
	if histogram := t[limit.StoreName(&c.Hits[0])]; histogram != nil { // else no store has the name
		histogram.Observe(time.Since(c.Began).Seconds())
	}
}
