//go:build e2e

package e2e

import (
	"fmt"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"
)

// outcome is a row of the table.
type outcome struct {
	name               string
	calls, errs        int     // errs had no answer
	quick              int     // of errs, for another reason than that Envoy did not wait longer
	envoy              counted // of all keys
	longest, recovered time.Duration
	median             time.Duration
	byPolicy           float64 // of the calls during the fault
	deny, local        int     // admitted beyond the limit
	localTwice         int     // admitted under local beyond twice the limit
	goroutines         [3]int  // before, at the end of the fault, after
	live               [2]int  // bytes of heap before and after, of the process that has grown most
}

// measure takes the sizes of the processes.
func (o *outcome) measure(before, during, after []size) {
	for i := range before {
		o.goroutines[0] = max(o.goroutines[0], before[i].goroutines)
		o.goroutines[1] = max(o.goroutines[1], during[i].goroutines)
		o.goroutines[2] = max(o.goroutines[2], after[i].goroutines)
		if after[i].live-before[i].live > o.live[1]-o.live[0] || i == 0 {
			o.live = [2]int{before[i].live, after[i].live}
		}
	}
}

// read finds out what the calls have seen.
func (o *outcome) read(calls []asked, began, healed time.Time) {
	byRule, during, byPolicy, back := map[string][]asked{}, 0, 0, map[int]bool{}
	var times []time.Duration
	for _, a := range calls {
		took := a.done.Sub(a.began)
		times = append(times, took)
		o.calls++
		o.longest = max(o.longest, took)
		if !a.answered {
			o.errs++
			if took < late()/2 { // its timers may be early by as much as it was busy
				o.quick++
			}
		}
		byRule[a.rule] = append(byRule[a.rule], a)
	}
	slices.Sort(times)
	o.median = times[len(times)/2]
	for _, a := range byRule["seen"] {
		switch {
		case a.began.After(began) && a.done.Before(healed):
			during++
			if a.answered && !a.passed {
				byPolicy++
			}
		case a.done.After(healed) && !back[a.weir]:
			back[a.weir] = a.passed
			if !a.passed {
				o.recovered = max(o.recovered, a.done.Sub(healed))
			}
		}
	}
	if during > 0 {
		o.byPolicy = float64(byPolicy) / float64(during)
	}
	o.deny, o.local, o.localTwice = beyond(byRule["deny"], 1), beyond(byRule["local"], 1), beyond(byRule["local"], 2)
}

// beyond returns the number of calls that passed above times the limit, in the worst period of any length: the overflow
// of a funnel of that size and rate.
func beyond(calls []asked, times float64) int {
	level, worst, last := 0.0, 0.0, time.Time{}
	for _, a := range calls {
		if a.passed {
			level = max(0, level-times*rate*a.done.Sub(last).Seconds()) + 1
			worst, last = max(worst, level), a.done
		}
	}
	return int(math.Ceil(max(0, worst-times*rate-1)))
}

// size is the resources of a process.
type size struct{ goroutines, live int }

var (
	goGoroutines = regexp.MustCompile(`(?m)^go_goroutines (\S+)$`)
	goHeap       = regexp.MustCompile(`(?m)^go_memstats_heap_alloc_bytes (\S+)$`)
)

// sizes collects the processes' garbage and asks what is left.
func (r *rig) sizes() []size {
	r.t.Helper()
	out := make([]size, len(r.weirs))
	for i, s := range r.weirs {
		res, err := http.Get("http://" + s.Local() + "/debug/pprof/heap?gc=1")
		r.must(err)
		r.must(res.Body.Close())
		if res.StatusCode != http.StatusOK {
			r.t.Fatalf("a profile is answered %s", res.Status)
		}
		_, text := s.Page("/metrics")
		number := func(of *regexp.Regexp) int {
			v, err := strconv.ParseFloat(of.FindStringSubmatch(text)[1], 64)
			r.must(err)
			return int(v)
		}
		out[i] = size{number(goGoroutines), number(goHeap)}
	}
	http.DefaultClient.CloseIdleConnections()
	return out
}

// settled is sizes once no process has noticeably more goroutines than before, or after half a minute.
func (r *rig) settled(before []size) []size {
	r.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		now := r.sizes()
		leaks := false
		for i := range now {
			leaks = leaks || now[i].goroutines > before[i].goroutines+more
		}
		if !leaks || time.Now().After(deadline) {
			return now
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// check holds the outcome against what is promised. The longest call shows for how long the machine itself may have
// stood still, and how much earlier than it was answered a call may have been decided.
func (o *outcome) check(t *testing.T, f fault) {
	t.Helper()
	most := func(what string, got, most int) {
		t.Helper()
		if got > most {
			t.Errorf("%s: %d, want at most %d", what, got, most)
		}
	}
	most("calls that took longer than a hung one may, ms", int(o.longest.Milliseconds()), int(hung().Milliseconds())-1)
	most("calls without an answer, other than Envoy's time-outs", o.quick, 0)
	most("median of the calls, ms, since a busy machine makes some late", int(o.median.Milliseconds()),
		int(late().Milliseconds()))
	most("recovered after, ms", int(o.recovered.Milliseconds()), int(o.recoveryBound().Milliseconds()))
	most("goroutines", o.goroutines[2], o.goroutines[0]+more)
	most("goroutines during the fault", o.goroutines[1], o.goroutines[0]+40)
	most("heap", o.live[1], o.live[0]+liveBytes)
	if f.keeps == evicts {
		return
	}
	bound := int(math.Ceil(rate * o.longest.Seconds()))
	if f.keeps == none {
		bound += rate
	}
	most("admitted beyond the limit under deny", o.deny, bound)
	most("admitted beyond twice the limit under local", o.localTwice, bound)
}

// recoveryBound is how long after the store's return the first decision may come. A probe that began before takes up to
// five times the store's timeout, the next one finds the store, and the next request is decided. A busy machine may
// hold up each of the three for as long as the longest call.
func (o *outcome) recoveryBound() time.Duration { return promised + 5*storeTimeout() + 3*o.longest }

// row is the outcome in the table.
func (o *outcome) row() string {
	return fmt.Sprintf("| %s | %.2f | %.0f | %d | %d | %d |", o.name, 100*float64(o.errs)/float64(max(1, o.calls)),
		100*o.byPolicy, o.deny, o.local, o.recovered.Milliseconds())
}

const chaosHead = "| fault | errors, % | by policy, % | beyond `deny` | beyond `local` | recovered, ms |\n" +
	"|---|---|---|---|---|---|"
