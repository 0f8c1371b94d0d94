package rules

import (
	"testing"
	"testing/synctest"
	"time"
)

// Work in steps of a tenth of loadWork pauses after ten steps or soon after, and never earlier.
func TestRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pacer
		const piece = loadWork / 10
		last, pauses := time.Now(), 0
		for i := range 1000 {
			time.Sleep(piece)
			before := time.Now()
			p.rest()
			switch rested := time.Since(before); {
			case rested == 0:
				if unbroken := before.Sub(last); unbroken > 2*loadWork {
					t.Fatalf("%v of work without a pause", unbroken)
				}
			case rested != loadPause:
				t.Fatalf("a pause of %v, want %v", rested, loadPause)
			default:
				if unbroken := before.Sub(last); unbroken < loadWork && i > 10 {
					t.Errorf("a pause after only %v of work", unbroken)
				}
				last = time.Now()
				pauses++
			}
		}
		if pauses < 50 || pauses > 100 {
			t.Errorf("%d pauses in 100 times loadWork, want 50 to 100", pauses)
		}
	})
}

// Work that takes no time does not pause, however often it calls rest.
func TestQuickWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pacer
		for range 4 { // it has not paused for long
			p.rest()
		}
		start := time.Now()
		for range 10_000 {
			p.rest()
		}
		if rested := time.Since(start); rested > 0 {
			t.Errorf("it paused for %v", rested)
		}
	})
}
