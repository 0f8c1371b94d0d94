package admin

import (
	"cmp"
	"context"
	"maps"
	"math"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/sleep"
)

// Bounds of History.
const (
	// SampleEvery is the time between two samples.
	SampleEvery = 5 * time.Second
	// Step is the length of a point, and Points the number of points of a series: an hour.
	Step   = 30 * time.Second
	Points = 120
	// MaxSeries is the maximum number of limits with a series of their own. A series has 12 bytes for each point, so all
	// of them together take at most 2 MB.
	MaxSeries = 1000
	// denyingPoints is the number of points over which the limits with the most denials are found: 5 minutes.
	denyingPoints = 10
	// maxDenying is the maximum number of limits in the response of GET /history.
	maxDenying = 5
)

// Sampler yields each limit's counts since its last call, and returns the counts of all requests.
type Sampler func(yield func(adminapi.LimitCounts)) (total adminapi.Counts)

// History stores the allowed and denied requests of each limit for every 30 seconds of the last hour. It reads the
// counters of the metrics, so it adds no work to requests. MaxSeries bounds its memory for any number of rules (ADR
// 0026). It is safe for concurrent use.
type History struct {
	sample Sampler
	since  time.Time

	mu     sync.Mutex
	until  time.Time // time of the latest sample
	tick   int64     // the latest point began tick*Step after 1970
	total  series
	limits map[adminapi.LimitName]*series
}

// series is a ring of points: the point of a tick is at tick % Points. Idle points are zero.
type series struct {
	points [Points]point
	active int64 // tick of the last non-zero point
}

// point has the counts of one Step. They saturate at 2^32-1.
type point struct{ allowed, denied, near uint32 }

// NewHistory returns a History that begins now. Run fills it.
func NewHistory(sample Sampler) *History {
	now := time.Now()
	return &History{
		sample: sample, since: now, until: now, tick: now.UnixNano() / int64(Step),
		limits: map[adminapi.LimitName]*series{},
	}
}

// Run takes samples until ctx is done.
func (h *History) Run(ctx context.Context) {
	h.sample(func(adminapi.LimitCounts) {}) // discards earlier counts
	for sleep.For(ctx, time.Until(time.Now().Truncate(SampleEvery).Add(SampleEvery))) == nil {
		h.Add(time.Now())
	}
}

// Add takes a sample that ends now.
func (h *History) Add(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.until = now
	h.advance(now.Add(-SampleEvery).UnixNano() / int64(Step)) // the point in which the sample began
	h.add(&h.total, h.sample(func(c adminapi.LimitCounts) {
		if s := h.seriesOf(c.LimitName); s != nil {
			h.add(s, c.Counts)
		}
	}))
}

// advance makes tick the latest point, with zero counts. If the clock was set back, the latest point remains. The
// caller must hold h.mu.
func (h *History) advance(tick int64) {
	gone := min(tick-h.tick, Points)
	if gone <= 0 {
		return
	}
	h.tick = tick
	for i := range gone {
		at := (tick - i) % Points
		h.total.points[at] = point{}
		for _, s := range h.limits {
			s.points[at] = point{}
		}
	}
	maps.DeleteFunc(h.limits, func(_ adminapi.LimitName, s *series) bool { return s.active <= tick-Points })
}

// seriesOf returns the series of a limit, or nil if there are too many. The caller must hold h.mu.
func (h *History) seriesOf(n adminapi.LimitName) *series {
	if s := h.limits[n]; s != nil {
		return s
	}
	if len(h.limits) >= MaxSeries {
		return nil
	}
	s := &series{active: h.tick}
	h.limits[n] = s
	return s
}

// add adds counts to the latest point of a series. The caller must hold h.mu.
func (h *History) add(s *series, c adminapi.Counts) {
	p := &s.points[h.tick%Points]
	p.allowed, p.denied, p.near = plus(p.allowed, c.Allowed), plus(p.denied, c.Denied), plus(p.near, c.Near)
	s.active = h.tick
}

// plus adds and saturates.
func plus(a uint32, b uint64) uint32 {
	return uint32(min(uint64(a)+min(b, math.MaxUint32), math.MaxUint32))
}

// Read returns the last hour of all requests, and of the limits that denied the most in the last 5 minutes.
func (h *History) Read() adminapi.History {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := adminapi.History{
		Until: h.until.UTC(), Since: h.since.UTC(), Step: int64(Step / time.Second), Total: h.read(&h.total),
		Denying: []adminapi.LimitOverTime{},
	}
	denied := map[adminapi.LimitName]uint64{}
	for n, s := range h.limits {
		for t := h.tick - denyingPoints + 1; t <= h.tick; t++ {
			if d := s.points[t%Points].denied; d > 0 {
				denied[n] += uint64(d)
			}
		}
	}
	names := slices.SortedFunc(maps.Keys(denied), func(a, b adminapi.LimitName) int {
		return cmp.Or(cmp.Compare(denied[b], denied[a]), a.Compare(b))
	})
	for _, n := range names[:min(len(names), maxDenying)] {
		all.Denying = append(all.Denying, adminapi.LimitOverTime{LimitName: n, CountsOverTime: *h.read(h.limits[n])})
	}
	return all
}

// Of returns the last hour of a limit, or nil if it has no counts.
func (h *History) Of(n adminapi.LimitName) *adminapi.CountsOverTime {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.limits[n]; s != nil {
		return h.read(s)
	}
	return nil
}

// read returns the points of a series, oldest first. The caller must hold h.mu.
func (h *History) read(s *series) *adminapi.CountsOverTime {
	c := &adminapi.CountsOverTime{
		Allowed: make([]uint32, Points), Denied: make([]uint32, Points), Near: make([]uint32, Points),
	}
	for i := range c.Allowed {
		p := s.points[(h.tick+1+int64(i))%Points]
		c.Allowed[i], c.Denied[i], c.Near[i] = p.allowed, p.denied, p.near
	}
	return c
}

// history answers GET /history.
func (h *handler) history(*http.Request) (adminapi.History, error) {
	if h.History == nil {
		return adminapi.History{}, refused(http.StatusNotFound, "this process keeps no counts over time")
	}
	return h.History.Read(), nil
}
