package admin_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/internal/admin"
	"github.com/weir-ratelimit/weir/internal/adminapi"
)

// source is counts that a test sets before each sample.
type source struct {
	limits []adminapi.LimitCounts
	total  adminapi.Counts
}

func (s *source) sample(yield func(adminapi.LimitCounts)) adminapi.Counts {
	for _, c := range s.limits {
		yield(c)
	}
	total := s.total
	s.limits, s.total = nil, adminapi.Counts{}
	return total
}

// countsOf is n allowed requests of a limit.
func countsOf(domain, rule string, n uint64) adminapi.LimitCounts {
	return adminapi.LimitCounts{
		LimitName: adminapi.LimitName{Domain: domain, Rule: rule}, Counts: adminapi.Counts{Allowed: n},
	}
}

// seen sets the counts of the next sample: n allowed requests of each limit.
func (s *source) seen(n uint64, limits ...string) {
	s.limits = nil
	for _, l := range limits {
		s.limits = append(s.limits, countsOf("shop", l, n))
	}
	s.total = adminapi.Counts{Allowed: n * uint64(len(limits))}
}

// clock gives a History samples at a time of its own, after the present.
type clock struct {
	h  *admin.History
	at time.Time
}

func newClock(s *source) *clock {
	c := &clock{h: admin.NewHistory(s.sample), at: time.Now().Truncate(time.Hour).Add(2 * time.Hour)}
	c.h.Add(c.at)
	return c
}

func (c *clock) tick(n int) {
	for range n {
		c.at = c.at.Add(admin.SampleEvery)
		c.h.Add(c.at)
	}
}

func limitsOf(a adminapi.History) (names []string) {
	for _, l := range a.Limits {
		names = append(names, l.Rule)
	}
	return names
}

func sum(list []uint64) (n uint64) {
	for _, v := range list {
		n += v
	}
	return n
}

// A sample is in the point of its time, points begin at multiples of their length, and after an hour it is gone.
func TestPoints(t *testing.T) {
	s := &source{}
	c := newClock(s)
	counted := adminapi.LimitCounts{
		LimitName: adminapi.LimitName{Domain: "shop", Rule: "a", Limit: "x"},
		Counts:    adminapi.Counts{Allowed: 5, Denied: 2, Near: 1},
	}
	s.limits = []adminapi.LimitCounts{
		counted,
		{Counts: adminapi.Counts{Denied: 7}},
	}
	s.total = adminapi.Counts{Allowed: 5, Denied: 9}
	c.tick(1)
	want := adminapi.Sample{
		Tick: c.at.Unix()/5 - 1, Until: c.at.UTC(), Total: adminapi.Counts{Allowed: 5, Denied: 9},
		Other:  adminapi.Counts{Denied: 7},
		Limits: []adminapi.LimitCounts{counted},
	}
	if diff := cmp.Diff(want, c.h.Last()); diff != "" {
		t.Errorf("the newest sample (-want +got):\n%s", diff)
	}
	c.tick(1) // 10 s after the hour: the next sample begins a point of 10 s
	s.seen(3, "a")
	c.tick(1)
	a := c.h.Read("", "", 360)
	if a.Step != 10 || len(a.Total.Allowed) != 360 || !a.Until.Equal(c.at) {
		t.Fatalf("step %d, %d points until %s", a.Step, len(a.Total.Allowed), a.Until)
	}
	if diff := cmp.Diff([]uint64{0, 5, 3}, a.Total.Allowed[357:]); diff != "" {
		t.Errorf("total allowed (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"a", "a"}, limitsOf(a)); diff != "" {
		t.Error(diff)
	}
	if a.Other.Denied[358] != 7 || a.Limits[1].Denied[358] != 2 || a.Limits[1].Near[358] != 1 {
		t.Errorf("%+v", a)
	}
	c.tick(admin.Samples - 3)
	if a := c.h.Read("", "", 1); a.Step != 3600 || a.Total.Denied[0]+a.Total.Allowed[0] == 0 {
		t.Errorf("just before the hour is over: step %d, %+v", a.Step, a.Total)
	}
	c.tick(3)
	a = c.h.Read("", "", admin.Samples)
	if sum(a.Total.Allowed)+sum(a.Total.Denied)+sum(a.Other.Denied) != 0 || len(a.Limits) != 0 {
		t.Errorf("after an hour there is %+v", a)
	}
}

// Domain and rule choose the limits.
func TestHistoryOf(t *testing.T) {
	s := &source{}
	c := newClock(s)
	s.seen(1, "a", "b")
	s.limits = append(s.limits, adminapi.LimitCounts{
		LimitName: adminapi.LimitName{Domain: "other", Rule: "a"}, Counts: adminapi.Counts{Denied: 1},
	})
	c.tick(1)
	for q, want := range map[[2]string]int{
		{"", ""}: 3, {"shop", ""}: 2, {"shop", "a"}: 1, {"", "a"}: 2, {"none", ""}: 0,
	} {
		if got := len(c.h.Read(q[0], q[1], 1).Limits); got != want {
			t.Errorf("%q: %d limits, want %d", q, got, want)
		}
	}
}

// Limits beyond the bound count together; one of them takes the place of a limit that has been idle, whose counts are
// not lost.
func TestSeriesAreBounded(t *testing.T) {
	s := &source{}
	c := newClock(s)
	var names []string
	for i := range admin.MaxSeries + 10 {
		names = append(names, fmt.Sprintf("rule-%03d", i))
	}
	s.seen(2, names...)
	c.tick(1)
	a := c.h.Read("", "", 1)
	if len(a.Limits) != admin.MaxSeries || a.Other.Allowed[0] != 20 {
		t.Fatalf("%d limits, and %d requests of others, want %d and 20", len(a.Limits), a.Other.Allowed[0], admin.MaxSeries)
	}
	idle, busy := limitsOf(a)[0], limitsOf(a)[1:]
	for range 58 { // all but one stay busy for just less than five minutes
		s.seen(1, busy...)
		c.tick(1)
	}
	s.seen(1, "new")
	c.tick(1)
	if slices.Contains(limitsOf(c.h.Read("", "", 1)), "new") {
		t.Error("a limit that was idle for less than five minutes is gone")
	}
	s.seen(1, "new")
	c.tick(1)
	a = c.h.Read("", "", 1)
	if got := limitsOf(a); len(got) != admin.MaxSeries || !slices.Contains(got, "new") || slices.Contains(got, idle) {
		t.Errorf("the new limit has no series, or the idle one %s has one: %v", idle, got)
	}
	all := sum(a.Other.Allowed)
	for _, l := range a.Limits {
		all += sum(l.Allowed)
	}
	if total := sum(a.Total.Allowed); all != total {
		t.Errorf("the limits and the others have %d requests, the total %d", all, total)
	}
}

// A clock that jumps forward leaves zeros, one that is set back adds to the newest sample.
func TestClockJumps(t *testing.T) {
	s := &source{}
	c := newClock(s)
	s.seen(1, "a")
	c.tick(1)
	c.at = c.at.Add(time.Minute)
	s.seen(10, "a")
	c.tick(1)
	c.at = c.at.Add(-30 * time.Minute)
	s.seen(100, "a")
	c.tick(1)
	got := c.h.Read("", "", admin.Samples).Limits[0].Allowed[admin.Samples-14:]
	if diff := cmp.Diff([]uint64{1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 110}, got); diff != "" {
		t.Error(diff)
	}
	c.at = c.at.Add(1000 * time.Hour)
	s.seen(7, "a")
	c.tick(1)
	if got := sum(c.h.Read("", "", admin.Samples).Limits[0].Allowed); got != 7 {
		t.Errorf("%d requests of the last hour, want 7", got)
	}
}

// Counts that do not fit are the largest that do.
func TestLargest(t *testing.T) {
	s := &source{}
	c := newClock(s)
	s.limits = []adminapi.LimitCounts{countsOf("d", "r", 1<<40)}
	c.tick(1)
	if got := c.h.Last().Limits[0].Allowed; got != 1<<32-1 {
		t.Errorf("%d", got)
	}
}

// Run takes a sample at each multiple of SampleEvery, leaves out what was before, wakes those who wait, and ends.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{}
		s.seen(50, "before")
		h := admin.NewHistory(s.sample)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			h.Run(ctx)
		}()
		synctest.Wait()
		s.seen(4, "a")
		<-h.Next()
		last := h.Last()
		if last.Total.Allowed != 4 || len(last.Limits) != 1 || !last.Until.Equal(time.Now()) ||
			!time.Now().Equal(time.Now().Truncate(admin.SampleEvery)) {
			t.Errorf("at %s: %+v", time.Now(), last)
		}
		cancel()
		<-done
	})
}

// All series together take what MaxSeries says, however many limits there are.
func TestMemoryOfHistory(t *testing.T) {
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	counts := make([]adminapi.LimitCounts, 100_000)
	for i := range counts {
		counts[i] = countsOf("shop", fmt.Sprint("rule-", i), 1)
	}
	before := heap()
	h := admin.NewHistory(func(yield func(adminapi.LimitCounts)) adminapi.Counts {
		for _, c := range counts {
			yield(c)
		}
		return adminapi.Counts{}
	})
	for i := range 3 {
		h.Add(time.Now().Add(time.Duration(i) * admin.SampleEvery))
	}
	taken := int64(heap()) - int64(before)
	t.Logf("%d bytes", taken)
	if taken < 1_700_000 || taken > 2_100_000 { // 202 series of 8,640 bytes, and their names
		t.Errorf("the history of 100,000 limits takes %d bytes", taken)
	}
	runtime.KeepAlive(h)
	runtime.KeepAlive(counts)
}
