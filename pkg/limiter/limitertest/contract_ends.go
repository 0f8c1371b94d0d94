package limitertest

import "github.com/weir-ratelimit/weir/pkg/limiter"

// endsInFlight: the end of a request frees what the request has taken. If that counts no more, since its lease has
// ended or since the counter was reset, the end frees nothing that others hold.
func endsInFlight(f *fixture) {
	p := policy(f, limiter.Params{Algorithm: limiter.Concurrency, Limit: 3, Window: 10 * sec})
	begin := func(n int64) limiter.Decision {
		f.clock.Advance(us)
		return f.take(limiter.Hit{Key: "client", Policy: p, N: n})[0]
	}
	end := func(of limiter.Decision, n int64, more ...limiter.Hit) {
		f.take(append(more, limiter.Hit{Key: "client", Policy: p, N: -n, TakenAt: of.TakenAt})...)
	}
	outlives := begin(3)
	f.clock.Advance(10 * sec)
	first := begin(1)
	f.clock.Advance(sec)
	second, third := begin(1), begin(1)
	end(outlives, 3)
	f.remaining("client", p, 0)
	end(second, 5) // no more than it holds
	f.remaining("client", p, 1)
	end(second, 1) // another time
	f.remaining("client", p, 1)
	f.clock.Advance(9*sec - 2*us) // the lease of the first one ends
	f.remaining("client", p, 2)
	end(first, 1)
	f.remaining("client", p, 2)
	end(third, 1)

	first, second = begin(2), begin(1)
	end(first, 1, limiter.Hit{Key: "ban", Policy: f.hourly(limiter.Funnel, 0), N: 1}) // also if its request is denied
	f.remaining("client", p, 1)
	end(second, 1)
	end(second, 1)
	f.remaining("client", p, 2)
	end(limiter.Decision{}, 1) // without a time it frees the oldest
	f.remaining("client", p, 3)
}

// endsOrOldest: what has lost its place to an end without a time frees the oldest in turn, unless its lease has ended.
func endsOrOldest(f *fixture) {
	p := policy(f, limiter.Params{Algorithm: limiter.Concurrency, Limit: 5, Window: 10 * sec})
	hit := limiter.Hit{Key: "client", Policy: p, N: 1}
	end := limiter.Hit{Key: "client", Policy: p, N: -1, OrOldest: true, TakenAt: f.take(hit)[0].TakenAt}
	f.clock.Advance(sec)
	f.take(hit, hit, hit)
	f.take(limiter.Hit{Key: "client", Policy: p, N: -1})
	f.take(end)
	f.remaining("client", p, 3)
	f.clock.Advance(9 * sec)
	f.take(end)
	f.remaining("client", p, 3)
}
