package limitertest

import (
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// byItself are the hits, each charged by itself.
func byItself(hits ...limiter.Hit) []limiter.Hit {
	for i := range hits {
		hits[i].ByItself = true
	}
	return hits
}

// eachByItself: a hit is charged though another one denies the request, and the denied one pays its charge_denied.
func eachByItself(f *fixture) {
	for _, a := range counting {
		wide, narrow := f.hourly(a, 10), f.hourly(limiter.FixedWindow, 2)
		key := a.String()
		hits := byItself(
			limiter.Hit{Key: key + "/wide", Policy: wide, N: 3}, limiter.Hit{Key: key + "/narrow", Policy: narrow, N: 1})
		f.want("++", hits...)
		f.want("++", hits...)
		if d := f.take(hits...); !d[0].Allowed || d[0].Remaining != 1 || d[1].Allowed {
			f.Errorf("%s beside a denial: got %+v, want it charged, with 1 left", a, d)
		}
		f.remaining(key+"/wide", wide, 1)
		f.want("-", limiter.Hit{Key: key + "/wide", Policy: wide, N: 2})
		f.want("+", limiter.Hit{Key: key + "/narrow", Policy: narrow, N: -2})
		f.remaining(key+"/narrow", narrow, 1) // 2 taken, 1 charged for the denial, 2 given back

		p := f.hourly(a, 9)
		twice := limiter.Hit{Key: key + "/twice", Policy: p, N: 4}
		f.want("++-", byItself(twice, twice, limiter.Hit{Key: key + "/ban", Policy: f.hourly(limiter.Funnel, 0), N: 1})...)
		f.remaining(key+"/twice", p, 1)
	}
}

// eachQuotaByItself: what does not fit is used up, whether or not the request passes.
func eachQuotaByItself(f *fixture) {
	small, large := f.hourly(limiter.Funnel, 10), f.hourly(limiter.FixedWindow, 1000)
	quotas := func(n int64) []limiter.Hit {
		return byItself(
			limiter.Hit{Key: "small", Policy: small, N: n, Mode: limiter.Quota},
			limiter.Hit{Key: "large", Policy: large, N: n, Mode: limiter.Quota, Group: 1})
	}
	f.want("++", quotas(8)...)
	f.want("-+", quotas(8)...)
	f.remaining("small", small, 0)
	f.remaining("large", large, 984)
	f.want("--", quotas(2000)...)
	f.want("+", limiter.Hit{Key: "large", Policy: large, N: -1000})
	f.remaining("large", large, 0) // charged in full: 2016 - 1000 are more than it has
	f.want("+", limiter.Hit{Key: "alone", Policy: small, N: 7})
	f.want("-", byItself(limiter.Hit{Key: "alone", Policy: small, N: 7, Mode: limiter.Quota})...)
	f.remaining("alone", small, 0)
}

// looksAtLimit: with LookAtLimit a look fits at exactly the limit, also at a limit of 0, and not beyond.
func looksAtLimit(f *fixture) {
	for _, align := range []limiter.Align{limiter.AlignEpoch, limiter.AlignFirstHit, limiter.AlignCalendar} {
		for _, limit := range []int64{0, 3} {
			p := policy(f, limiter.Params{
				Algorithm: limiter.FixedWindow, Limit: limit, Window: time.Hour, Align: align, LookAtLimit: true,
			})
			hit := limiter.Hit{Key: align.String() + string(rune('0'+limit)), Policy: p, N: 1}
			look := limiter.Hit{Key: hit.Key, Policy: p, Look: true}
			for range limit {
				f.want("+", hit)
			}
			f.want("+", look)
			f.want("-", hit)
			if d := f.take(look)[0]; d.Allowed || d.RetryAfter != d.ResetAfter || d.ResetAfter == 0 {
				f.Errorf("%s, limit %d: a look beyond it: %+v, want it denied until the window ends", align, limit, d)
			}
			f.want("+", limiter.Hit{Key: hit.Key, Policy: p, N: -1})
			f.want("+", look)
		}
	}
}
