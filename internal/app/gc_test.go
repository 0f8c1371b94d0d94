package app

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"
)

// gogc returns GOGC.
func gogc() uint64 {
	now := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	metrics.Read(now)
	return now[0].Value.Uint64()
}

// collected collects until GOGC is within lo and hi: it follows a collection a moment later.
func collected(t *testing.T, lo, hi uint64) {
	t.Helper()
	for range 1000 {
		runtime.GC()
		if p := gogc(); p >= lo && p <= hi {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("GOGC is %d, want %d to %d", gogc(), lo, hi)
}

func TestGCPaceFollowsTheHeap(t *testing.T) {
	t.Setenv("GOGC", "")
	t.Setenv("GOMEMLIMIT", "1GiB")
	before := gogc()
	p, err := StartGCPace()
	if err != nil {
		t.Fatal(err)
	}
	if p.Headroom != 64<<20 {
		t.Errorf("headroom %d, want 64 MiB", p.Headroom)
	}
	collected(t, 600, 10_000) // a few MB
	goal := []metrics.Sample{{Name: "/gc/heap/goal:bytes"}}
	if metrics.Read(goal); goal[0].Value.Uint64() > 90<<20 {
		t.Errorf("the next collection is at %d MiB, want about 64 above a few", goal[0].Value.Uint64()>>20)
	}
	ballast := make([]byte, 32<<20)
	collected(t, 150, 200) // 64 MB over 32 and a few
	more := make([]byte, 100<<20)
	collected(t, 100, 100)
	runtime.KeepAlive(ballast)
	runtime.KeepAlive(more)
	collected(t, 600, 10_000)
	p.Stop()
	if got := gogc(); got != before {
		t.Errorf("after Stop GOGC is %d, want %d", got, before)
	}
	runtime.GC()
	time.Sleep(5 * time.Millisecond)
	if got := gogc(); got != before {
		t.Errorf("a collection after Stop made GOGC %d, want %d", got, before)
	}
}

// collections returns the number of all collections and of forced ones.
func collections() (all, forced uint64) {
	now := []metrics.Sample{{Name: "/gc/cycles/total:gc-cycles"}, {Name: "/gc/cycles/forced:gc-cycles"}}
	metrics.Read(now)
	return now[0].Value.Uint64(), now[1].Value.Uint64()
}

// What is allocated twice over while a hold lasts is collected when the last hold ends, and not before.
func TestGCHold(t *testing.T) {
	t.Setenv("GOGC", "")
	p, err := StartGCPace()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop()
	live := make([]byte, 100<<20)
	collected(t, 100, 100)
	outer, inner := p.Hold(), p.Hold()
	before, _ := collections()
	var more [][]byte
	for range 200 {
		more = append(more, make([]byte, 1<<20))
	}
	inner()
	inner() // releases nothing again
	if all, _ := collections(); all != before {
		t.Errorf("%d collections while GC is held, want none", all-before)
	}
	runtime.KeepAlive(more)
	outer()
	if all, forced := collections(); all != before+1 || forced == 0 {
		t.Errorf("%d collections after the hold, %d forced so far, want one, forced", all-before, forced)
	}
	collected(t, 100, 100)
	runtime.KeepAlive(live)
}

func TestGOGCOfTheEnvironmentStands(t *testing.T) {
	t.Setenv("GOGC", "50")
	before := debug.SetGCPercent(50)
	defer debug.SetGCPercent(before)
	p, err := StartGCPace()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop()
	release := p.Hold()
	if got := gogc(); got != 50 {
		t.Errorf("a hold made GOGC %d, want 50", got)
	}
	release()
	runtime.GC()
	time.Sleep(5 * time.Millisecond)
	if got := gogc(); got != 50 || p.Headroom != 0 {
		t.Errorf("GOGC is %d with a headroom of %d, want 50 and 0", got, p.Headroom)
	}
}

func TestGCPaceInASmallContainer(t *testing.T) {
	t.Setenv("GOGC", "")
	limit := debug.SetMemoryLimit(64 << 20) // as GOMEMLIMIT=64MiB at the start of the process
	defer debug.SetMemoryLimit(limit)
	t.Setenv("GOMEMLIMIT", "64MiB")
	p, err := StartGCPace()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop()
	if p.MemoryLimit != 64<<20 || p.Headroom != 16<<20 {
		t.Errorf("memory limit %d and headroom %d, want 64 MiB and 16 MiB", p.MemoryLimit, p.Headroom)
	}
}

// In a process that is not Weir's alone, no memory limit is taken from the container, and GOMEMLIMIT stands.
func TestSharedGCPaceSetsNoMemoryLimit(t *testing.T) {
	t.Setenv("GOGC", "")
	before := debug.SetMemoryLimit(-1)
	p, err := StartSharedGCPace()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop()
	now := debug.SetMemoryLimit(-1)
	if now != before || p.MemoryLimit != before || p.Headroom == 0 || p.Headroom > 64<<20 {
		t.Errorf("memory limit %d, before %d; %+v", now, before, p)
	}
}
