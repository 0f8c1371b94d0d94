package limitertest

import (
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

func allOrNone(f *fixture) {
	for _, a := range counting {
		wide, narrow := f.hourly(a, 10), f.hourly(limiter.Funnel, 2)
		hits := []limiter.Hit{
			{Key: a.String() + "/wide", Policy: wide, N: 1},
			{Key: a.String() + "/narrow", Policy: narrow, N: 1},
		}
		f.want("++", hits...)
		f.want("++", hits...)
		d := f.take(hits...)
		if !d[0].Allowed || d[0].Remaining != 8 || d[0].RetryAfter != 0 {
			f.Errorf("%s beside a denial: got %+v, want it to fit and to keep its 8", a, d[0])
		}
		if d[1].Allowed || d[1].RetryAfter != 30*time.Minute {
			f.Errorf("the denial: got %+v, want to be told to retry after 30m0s", d[1])
		}
		f.remaining(hits[0].Key, wide, 8)
	}
}

func onlyTheDenier(f *fixture) {
	p := f.hourly(limiter.FixedWindow, 2)
	wide := f.hourly(limiter.FixedWindow, 10)
	f.want("+", limiter.Hit{Key: "narrow", Policy: p, N: 2})
	f.want("+-+",
		limiter.Hit{Key: "before", Policy: wide, N: 1},
		limiter.Hit{Key: "narrow", Policy: p, N: 1},
		limiter.Hit{Key: "after", Policy: wide, N: 1})
	f.want("+", limiter.Hit{Key: "narrow", Policy: p, N: -1})
	f.remaining("narrow", p, 0) // 2 taken, 1 charged for the denial, 1 given back
	f.remaining("before", wide, 10)
	f.remaining("after", wide, 10)
}

func refundBesideDenial(f *fixture) {
	for _, a := range counting {
		p, full := f.hourly(a, 5), f.hourly(limiter.Funnel, 1)
		f.want("++", limiter.Hit{Key: a.String(), Policy: p, N: 4},
			limiter.Hit{Key: a.String() + "/full", Policy: full, N: 1})
		f.want("+-", limiter.Hit{Key: a.String(), Policy: p, N: -3},
			limiter.Hit{Key: a.String() + "/full", Policy: full, N: 1})
		f.remaining(a.String(), p, 4)
	}
}

// shadow: it is charged by itself, whatever becomes of the request.
func shadow(f *fixture) {
	three := f.hourly(limiter.Funnel, 3)
	f.want("-+", limiter.Hit{Key: "ban", Policy: f.hourly(limiter.Funnel, 0), N: 1},
		limiter.Hit{Key: "charged", Policy: three, N: 1, Mode: limiter.Shadow})
	f.remaining("charged", three, 2) // by itself, though the request is denied

	debt := policy(f, limiter.Params{
		Algorithm: limiter.Funnel, Limit: 3, Window: time.Hour, ChargeDenied: limiter.ChargeFull,
	})
	f.want("+-", limiter.Hit{Key: "charged", Policy: three, N: 1},
		limiter.Hit{Key: "debt", Policy: debt, N: 4, Mode: limiter.Shadow})
	f.want("+", limiter.Hit{Key: "debt", Policy: debt, N: -2})
	f.remaining("debt", debt, 1) // its own charge_denied, though the request is admitted
}

// sameKeyBeyondCapacity: no wait lets two hits pass that together are more than the limit takes.
func sameKeyBeyondCapacity(f *fixture) {
	for _, a := range algorithms {
		p := f.hourly(a, 3)
		hit := limiter.Hit{Key: a.String(), Policy: p, N: 2}
		if got := f.take(hit, hit)[1]; got.Allowed || got.RetryAfter != limiter.Never {
			f.Errorf("%s: 2 and 2 of 3: %+v, want never", a, got)
		}
	}
}

// emptyBesideDenial: a bucket fills from its first hit on, also if that request is denied by another limit.
func emptyBesideDenial(f *fixture) {
	for key, atOnce := range map[string]bool{"greedy": false, "interval": true} {
		p := policy(f, limiter.Params{
			Algorithm: limiter.TokenBucket, Limit: 1, Window: sec, Burst: 9, StartsEmpty: true, RefillsAtOnce: atOnce,
		})
		f.want("--", limiter.Hit{Key: "ban", Policy: f.hourly(limiter.Funnel, 0), N: 1},
			limiter.Hit{Key: key, Policy: p, N: 1})
		f.clock.Advance(3 * sec)
		f.remaining(key, p, 3)
	}
}
