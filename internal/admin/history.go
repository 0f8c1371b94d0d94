package admin

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/weir-ratelimit/weir/internal/adminapi"
)

// Bounds of History.
const (
	// SampleEvery is the time between two samples.
	SampleEvery = 5 * time.Second
	// Samples is how many samples a series keeps: an hour.
	Samples = 720
	// MaxSeries is the most limits with a series of their own. A series has 12 bytes for each sample, so all of them
	// together take at most 2 MB (TestMemoryOfHistory).
	MaxSeries = 200
	// idleSamples is how long a limit without requests keeps its series when another limit needs one: 5 minutes.
	idleSamples = 60
)

// Sampler yields what was counted of each limit since its last call, and returns the counts of all requests. A limit
// without a domain is one of those that have no counters of their own.
type Sampler func(yield func(adminapi.LimitCounts)) (total adminapi.Counts)

// History keeps how many requests each limit allowed and denied in every 5 seconds of the last hour. It reads the
// counters that metrics keep anyway, so it costs a request nothing. Its memory is bounded by MaxSeries, whatever the
// number of rules (ADR 0061). It is safe for concurrent use.
type History struct {
	sample Sampler
	since  time.Time

	mu     sync.Mutex
	tick   int64 // of the newest sample: it ends at (tick+1)*SampleEvery since 1970; 0 before the first
	total  series
	other  series
	limits map[adminapi.LimitName]*series
	full   int64         // tick in which no series was idle: no other limit gets one in it
	next   chan struct{} // closed at the next sample
}

// series is a ring of samples: that of a tick is at tick % Samples. Idle ones are zero.
type series struct {
	points [Samples]point
	active int64 // tick of the last sample that is not zero
}

// point is one sample. Counts beyond 2^32-1 in 5 seconds are shown as that.
type point struct{ allowed, denied, near uint32 }

// NewHistory returns a History that begins now. Run fills it.
func NewHistory(sample Sampler) *History {
	return &History{
		sample: sample, since: time.Now(), tick: tickOf(time.Now()),
		limits: map[adminapi.LimitName]*series{}, next: make(chan struct{}),
	}
}

// tickOf numbers the sample that has ended at t, or before.
func tickOf(t time.Time) int64 { return t.UnixNano()/int64(SampleEvery) - 1 }

// Run takes samples until ctx is done.
func (h *History) Run(ctx context.Context) {
	h.sample(func(adminapi.LimitCounts) {}) // what was counted before is in no sample
	for {
		now := time.Now()
		timer := time.NewTimer(now.Truncate(SampleEvery).Add(SampleEvery).Sub(now))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
			h.Add(time.Now())
		}
	}
}

// Add takes a sample that ends now.
func (h *History) Add(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.advance(tickOf(now))
	h.add(&h.total, h.sample(func(c adminapi.LimitCounts) {
		h.add(h.seriesOf(c.LimitName), c.Counts)
	}))
	close(h.next)
	h.next = make(chan struct{})
}

// advance makes tick the newest one, with all counts 0. A clock that was set back adds to the newest. h is locked.
func (h *History) advance(tick int64) {
	gone := min(tick-h.tick, Samples)
	if gone <= 0 {
		return
	}
	h.tick = tick
	for i := range gone {
		at := (tick - i) % Samples
		h.total.points[at], h.other.points[at] = point{}, point{}
		for _, s := range h.limits {
			s.points[at] = point{}
		}
	}
	for name, s := range h.limits {
		if s.active <= tick-Samples {
			delete(h.limits, name)
		}
	}
}

// seriesOf returns the series of a limit, or other if there are too many. h is locked.
func (h *History) seriesOf(n adminapi.LimitName) *series {
	if n.Domain == "" {
		return &h.other
	}
	if s := h.limits[n]; s != nil {
		return s
	}
	if len(h.limits) >= MaxSeries && !h.dropIdle() {
		return &h.other
	}
	s := &series{active: h.tick}
	h.limits[n] = s
	return s
}

// dropIdle moves the series that was idle for the longest time to other, if that is long enough. h is locked.
func (h *History) dropIdle() bool {
	if h.full == h.tick {
		return false
	}
	var name adminapi.LimitName
	var idlest *series
	for n, s := range h.limits {
		if idlest == nil || s.active < idlest.active {
			name, idlest = n, s
		}
	}
	if idlest == nil || idlest.active > h.tick-idleSamples {
		h.full = h.tick
		return false
	}
	for i, p := range idlest.points {
		o := &h.other.points[i]
		o.allowed, o.denied, o.near = plus(o.allowed, p.allowed), plus(o.denied, p.denied), plus(o.near, p.near)
	}
	delete(h.limits, name)
	return true
}

// add adds counts to the newest point of a series. h is locked.
func (h *History) add(s *series, c adminapi.Counts) {
	p := &s.points[h.tick%Samples]
	p.allowed, p.denied, p.near = plus(p.allowed, c.Allowed), plus(p.denied, c.Denied), plus(p.near, c.Near)
	s.active = h.tick
}

// plus adds without overflow.
func plus[N uint32 | uint64](a uint32, b N) uint32 {
	return uint32(min(uint64(a)+min(uint64(b), math.MaxUint32), math.MaxUint32))
}

// Next is closed when there is another sample.
func (h *History) Next() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.next
}

// Last returns the newest sample.
func (h *History) Last() adminapi.Sample {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := func(s *series) adminapi.Counts {
		p := s.points[h.tick%Samples]
		return adminapi.Counts{Allowed: uint64(p.allowed), Denied: uint64(p.denied), Near: uint64(p.near)}
	}
	last := adminapi.Sample{
		Tick: h.tick, Until: h.until(), Total: at(&h.total), Other: at(&h.other), Limits: []adminapi.LimitCounts{},
	}
	for n, s := range h.limits {
		if c := at(s); c != (adminapi.Counts{}) {
			last.Limits = append(last.Limits, adminapi.LimitCounts{LimitName: n, Counts: c})
		}
	}
	slices.SortFunc(last.Limits, func(a, b adminapi.LimitCounts) int { return a.Compare(b.LimitName) })
	return last
}

// until is the end of the newest sample. h is locked.
func (h *History) until() time.Time { return time.Unix(0, (h.tick+1)*int64(SampleEvery)).UTC() }

// Read returns the last hour of the limits of a domain and of a rule, by its path; empty is any. Each series has at
// most so many points, from 1 to Samples, which begin at multiples of their length.
func (h *History) Read(domain, rule string, points int) adminapi.History {
	group := int64((Samples + points - 1) / points)
	h.mu.Lock()
	defer h.mu.Unlock()
	all := adminapi.History{
		Until: h.until(), Since: h.since.UTC(), Step: group * int64(SampleEvery/time.Second), Tick: h.tick,
		Every: int64(SampleEvery / time.Second),
		Total: h.total.read(h.tick, group), Other: h.other.read(h.tick, group), Limits: []adminapi.LimitOverTime{},
	}
	for n, s := range h.limits {
		if (domain == "" || n.Domain == domain) && (rule == "" || n.Rule == rule) {
			all.Limits = append(all.Limits, adminapi.LimitOverTime{LimitName: n, CountsOverTime: s.read(h.tick, group)})
		}
	}
	slices.SortFunc(all.Limits, func(a, b adminapi.LimitOverTime) int { return a.Compare(b.LimitName) })
	return all
}

// read sums the points of each group of ticks. The groups that do not lie within the last hour as a whole are left out,
// but for the newest.
func (s *series) read(tick, group int64) adminapi.CountsOverTime {
	newest := tick / group
	n := min(Samples/group, Samples)
	c := adminapi.CountsOverTime{Allowed: make([]uint64, n), Denied: make([]uint64, n), Near: make([]uint64, n)}
	for t := max((newest-n+1)*group, tick-Samples+1); t <= tick; t++ {
		p, i := s.points[t%Samples], t/group-newest+n-1
		c.Allowed[i] += uint64(p.allowed)
		c.Denied[i] += uint64(p.denied)
		c.Near[i] += uint64(p.near)
	}
	return c
}
