package breather_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/internal/breather"
)

// Work that takes a tenth of Work a piece pauses after ten of them or soon after, and never earlier.
func TestRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b breather.Breather
		const piece = breather.Work / 10
		last, pauses := time.Now(), 0
		for i := range 1000 {
			time.Sleep(piece)
			before := time.Now()
			b.Rest()
			switch rested := time.Since(before); {
			case rested == 0:
				if unbroken := before.Sub(last); unbroken > 2*breather.Work {
					t.Fatalf("%v of work without a pause", unbroken)
				}
			case rested != breather.Pause:
				t.Fatalf("a pause of %v, want %v", rested, breather.Pause)
			default:
				if unbroken := before.Sub(last); unbroken < breather.Work && i > 10 {
					t.Errorf("a pause after only %v of work", unbroken)
				}
				last = time.Now()
				pauses++
			}
		}
		if pauses < 50 || pauses > 100 {
			t.Errorf("%d pauses in 100 times Work, want 50 to 100", pauses)
		}
	})
}

// Work that is done in no time does not pause, however often it asks.
func TestQuickWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b breather.Breather
		for range 4 { // it has not paused for long
			b.Rest()
		}
		start := time.Now()
		for range 10_000 {
			b.Rest()
		}
		if rested := time.Since(start); rested > 0 {
			t.Errorf("it paused for %v", rested)
		}
	})
}
