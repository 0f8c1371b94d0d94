package admin_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-ratelimit/weir/internal/admin"
	"github.com/weir-ratelimit/weir/internal/adminapi"
)

// source is counts that a test sets before each sample.
type source struct {
	mu     sync.Mutex
	limits []adminapi.LimitCounts
	total  adminapi.Counts
}

func (s *source) sample(yield func(adminapi.LimitCounts)) adminapi.Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
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
	s.mu.Lock()
	defer s.mu.Unlock()
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

// of returns how many requests of a rule were allowed in the last hour.
func (c *clock) of(rule string) []uint32 {
	all := c.h.Of(adminapi.LimitName{Domain: "shop", Rule: rule})
	if all == nil {
		return nil
	}
	return all.Allowed
}

func sum(list []uint32) (n uint32) {
	for _, v := range list {
		n += v
	}
	return n
}

// A sample is in the point of its time, points begin at multiples of their length, and after an hour it is gone.
func TestPoints(t *testing.T) {
	s := &source{}
	c := newClock(s)
	a := adminapi.LimitName{Domain: "shop", Rule: "a", Limit: "x"}
	s.limits = []adminapi.LimitCounts{{LimitName: a, Counts: adminapi.Counts{Allowed: 5, Denied: 2, Near: 1}}}
	s.total = adminapi.Counts{Allowed: 5, Denied: 9}
	c.tick(6) // the last sample that begins within the first half minute
	s.limits = []adminapi.LimitCounts{{LimitName: a, Counts: adminapi.Counts{Allowed: 3}}}
	s.total = adminapi.Counts{Allowed: 3}
	c.tick(1)
	all := c.h.Read()
	if all.Step != 30 || len(all.Total.Allowed) != admin.Points || !all.Until.Equal(c.at) {
		t.Fatalf("step %d, %d points until %s", all.Step, len(all.Total.Allowed), all.Until)
	}
	last := admin.Points - 2
	if diff := cmp.Diff([]uint32{5, 3}, all.Total.Allowed[last:]); diff != "" || all.Total.Denied[last] != 9 {
		t.Errorf("total %+v, allowed (-want +got):\n%s", all.Total, diff)
	}
	of := c.h.Of(a)
	if diff := cmp.Diff([]uint32{5, 3}, of.Allowed[last:]); diff != "" || of.Denied[last] != 2 || of.Near[last] != 1 {
		t.Errorf("the limit %+v, allowed (-want +got):\n%s", of, diff)
	}
	c.tick(118 * 6)
	if all := c.h.Read(); sum(all.Total.Allowed) != 8 {
		t.Errorf("just before the hour is over: %+v", all.Total)
	}
	c.tick(2 * 6)
	if all := c.h.Read(); sum(all.Total.Allowed)+sum(all.Total.Denied) != 0 || c.h.Of(a) != nil {
		t.Errorf("after an hour there is %+v", all)
	}
}

// The answer names the five limits that denied the most in the last five minutes, the most first.
func TestDenying(t *testing.T) {
	s := &source{}
	c := newClock(s)
	deny := func(n uint64, rule string) {
		s.limits = append(s.limits, adminapi.LimitCounts{
			LimitName: adminapi.LimitName{Domain: "shop", Rule: rule}, Counts: adminapi.Counts{Denied: n},
		})
	}
	deny(1000, "old")
	c.tick(5 * 12)
	for i, rule := range []string{"a", "b", "c", "d", "e", "f"} {
		deny(uint64(i), rule)
	}
	deny(3, "g")
	c.tick(1)
	var rules []string
	for _, l := range c.h.Read().Denying {
		rules = append(rules, fmt.Sprint(l.Rule, " ", sum(l.Denied)))
	}
	if diff := cmp.Diff([]string{"f 5", "e 4", "d 3", "g 3", "c 2"}, rules); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A limit beyond the bound has no series, until another limit has been idle for an hour.
func TestSeriesAreBounded(t *testing.T) {
	s := &source{}
	c := newClock(s)
	var names []string
	for i := range admin.MaxSeries + 1 {
		names = append(names, fmt.Sprintf("rule-%04d", i))
	}
	s.seen(2, names...)
	c.tick(1)
	if idle, late := c.of(names[0]), c.of(names[admin.MaxSeries]); sum(idle) != 2 || late != nil {
		t.Fatalf("the first limit has %d requests, the last one %v", sum(idle), late)
	}
	c.tick(admin.Points * 6)
	s.seen(1, names[admin.MaxSeries])
	c.tick(1)
	if idle, late := c.of(names[0]), c.of(names[admin.MaxSeries]); idle != nil || sum(late) != 1 {
		t.Errorf("idle %v, late %v", idle, late)
	}
}

// A clock that jumps forward leaves zeros, one that is set back adds to the newest sample.
func TestClockJumps(t *testing.T) {
	s := &source{}
	c := newClock(s)
	s.seen(1, "a")
	c.tick(1)
	c.at = c.at.Add(2 * time.Minute)
	s.seen(10, "a")
	c.tick(1)
	c.at = c.at.Add(-30 * time.Minute)
	s.seen(100, "a")
	c.tick(1)
	if diff := cmp.Diff([]uint32{1, 0, 0, 0, 110}, c.of("a")[admin.Points-5:]); diff != "" {
		t.Error(diff)
	}
	c.at = c.at.Add(1000 * time.Hour)
	s.seen(7, "a")
	c.tick(1)
	if got := sum(c.of("a")); got != 7 {
		t.Errorf("%d requests of the last hour, want 7", got)
	}
}

// Counts that do not fit are the largest that do.
func TestLargest(t *testing.T) {
	s := &source{}
	c := newClock(s)
	s.limits = []adminapi.LimitCounts{countsOf("shop", "r", 1<<40)}
	c.tick(1)
	if got := c.of("r")[admin.Points-1]; got != 1<<32-1 {
		t.Errorf("%d", got)
	}
}

// Run takes a sample at each multiple of SampleEvery, leaves out what was before, and ends.
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
		time.Sleep(admin.SampleEvery)
		synctest.Wait()
		all := h.Read()
		if sum(all.Total.Allowed) != 4 || !all.Until.Equal(all.Until.Truncate(admin.SampleEvery)) {
			t.Errorf("at %s: %+v", time.Now(), all)
		}
		cancel()
		<-done
	})
}
