package history_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/history"
)

// source is counts that a test sets before each sample.
type source struct {
	limits map[history.Name]history.Counts
	total  history.Counts
}

func (s *source) sample(yield func(history.Name, history.Counts)) history.Counts {
	for n, c := range s.limits {
		yield(n, c)
	}
	total := s.total
	s.limits, s.total = nil, history.Counts{}
	return total
}

// seen sets the counts of the next sample: n allowed requests of each limit.
func (s *source) seen(n uint64, limits ...string) {
	s.limits = map[history.Name]history.Counts{}
	for _, l := range limits {
		s.limits[history.Name{Domain: "shop", Rule: l}] = history.Counts{Allowed: n}
	}
	s.total = history.Counts{Allowed: n * uint64(len(limits))}
}

// clock gives a History samples at a time of its own, after the present.
type clock struct {
	h  *history.History
	at time.Time
}

func newClock(s *source) *clock {
	c := &clock{h: history.New(s.sample), at: time.Now().Truncate(time.Hour).Add(2 * time.Hour)}
	c.h.Add(c.at)
	return c
}

func (c *clock) tick(n int) {
	for range n {
		c.at = c.at.Add(history.Every)
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
	s.limits = map[history.Name]history.Counts{
		{Domain: "shop", Rule: "a", Limit: "x"}: {Allowed: 5, Denied: 2, Near: 1}, {}: {Denied: 7},
	}
	s.total = history.Counts{Allowed: 5, Denied: 9}
	c.tick(1)
	want := adminapi.Sample{
		Tick: c.at.Unix()/5 - 1, Until: c.at.UTC(), Total: adminapi.Counts{Allowed: 5, Denied: 9},
		Other: adminapi.Counts{Denied: 7},
		Limits: []adminapi.LimitCounts{
			{Domain: "shop", Rule: "a", Limit: "x", Counts: adminapi.Counts{Allowed: 5, Denied: 2, Near: 1}},
		},
	}
	if diff := cmp.Diff(want, c.h.Last()); diff != "" {
		t.Errorf("the newest sample (-want +got):\n%s", diff)
	}
	c.tick(1) // 10 s after the hour: the next sample begins a point of 10 s
	s.seen(3, "a")
	c.tick(1)
	a := c.h.Read(history.Query{Points: 360})
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
	c.tick(history.Samples - 3)
	if a := c.h.Read(history.Query{Points: 1}); a.Step != 3600 || a.Total.Denied[0]+a.Total.Allowed[0] == 0 {
		t.Errorf("just before the hour is over: step %d, %+v", a.Step, a.Total)
	}
	c.tick(3)
	a = c.h.Read(history.Query{Points: history.Samples})
	if sum(a.Total.Allowed)+sum(a.Total.Denied)+sum(a.Other.Denied) != 0 || len(a.Limits) != 0 {
		t.Errorf("after an hour there is %+v", a)
	}
}

// Domain and rule choose the limits.
func TestQuery(t *testing.T) {
	s := &source{}
	c := newClock(s)
	s.seen(1, "a", "b")
	s.limits[history.Name{Domain: "other", Rule: "a"}] = history.Counts{Denied: 1}
	c.tick(1)
	for q, want := range map[history.Query]int{
		{Points: 1}: 3, {Domain: "shop", Points: 1}: 2, {Domain: "shop", Rule: "a", Points: 1}: 1,
		{Rule: "a", Points: 1}: 2, {Domain: "none", Points: 1}: 0,
	} {
		if got := len(c.h.Read(q).Limits); got != want {
			t.Errorf("%+v: %d limits, want %d", q, got, want)
		}
	}
}

// Limits beyond the bound count together; one of them takes the place of a limit that has been idle, whose counts are
// not lost.
func TestBound(t *testing.T) {
	s := &source{}
	c := newClock(s)
	var names []string
	for i := range history.MaxLimits + 10 {
		names = append(names, fmt.Sprintf("rule-%03d", i))
	}
	s.seen(2, names...)
	c.tick(1)
	a := c.h.Read(history.Query{Points: 1})
	if len(a.Limits) != history.MaxLimits || a.Other.Allowed[0] != 20 {
		t.Fatalf("%d limits, and %d requests of others, want %d and 20", len(a.Limits), a.Other.Allowed[0], history.MaxLimits)
	}
	idle, busy := limitsOf(a)[0], limitsOf(a)[1:]
	for range 58 { // all but one stay busy for just less than five minutes
		s.seen(1, busy...)
		c.tick(1)
	}
	s.seen(1, "new")
	c.tick(1)
	if slices.Contains(limitsOf(c.h.Read(history.Query{Points: 1})), "new") {
		t.Error("a limit that was idle for less than five minutes is gone")
	}
	s.seen(1, "new")
	c.tick(1)
	a = c.h.Read(history.Query{Points: 1})
	if got := limitsOf(a); len(got) != history.MaxLimits || !slices.Contains(got, "new") || slices.Contains(got, idle) {
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
	got := c.h.Read(history.Query{Points: history.Samples}).Limits[0].Allowed[history.Samples-14:]
	if diff := cmp.Diff([]uint64{1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 110}, got); diff != "" {
		t.Error(diff)
	}
	c.at = c.at.Add(1000 * time.Hour)
	s.seen(7, "a")
	c.tick(1)
	if got := sum(c.h.Read(history.Query{Points: history.Samples}).Limits[0].Allowed); got != 7 {
		t.Errorf("%d requests of the last hour, want 7", got)
	}
}

// Counts that do not fit are the largest that do.
func TestLargest(t *testing.T) {
	s := &source{}
	c := newClock(s)
	s.limits = map[history.Name]history.Counts{{Domain: "d", Rule: "r"}: {Allowed: 1 << 40}}
	c.tick(1)
	if got := c.h.Last().Limits[0].Allowed; got != 1<<32-1 {
		t.Errorf("%d", got)
	}
}

// Run takes a sample at each multiple of Every, leaves out what was before, wakes those who wait, and ends.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{}
		s.seen(50, "before")
		h := history.New(s.sample)
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
			!time.Now().Equal(time.Now().Truncate(history.Every)) {
			t.Errorf("at %s: %+v", time.Now(), last)
		}
		cancel()
		<-done
	})
}

// All series together take what the package says, however many limits there are.
func TestMemory(t *testing.T) {
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	names := make([]history.Name, 100_000)
	for i := range names {
		names[i] = history.Name{Domain: "shop", Rule: fmt.Sprint("rule-", i)}
	}
	before := heap()
	h := history.New(func(yield func(history.Name, history.Counts)) history.Counts {
		for _, n := range names {
			yield(n, history.Counts{Allowed: 1})
		}
		return history.Counts{}
	})
	for i := range 3 {
		h.Add(time.Now().Add(time.Duration(i) * history.Every))
	}
	taken := int64(heap()) - int64(before)
	t.Logf("%d bytes", taken)
	if taken < 1_700_000 || taken > 2_100_000 { // 202 series of 8,640 bytes, and their names
		t.Errorf("the history of 100,000 limits takes %d bytes", taken)
	}
	runtime.KeepAlive(h)
	runtime.KeepAlive(names)
}
