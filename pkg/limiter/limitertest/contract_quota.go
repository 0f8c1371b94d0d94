package limitertest

import "github.com/weir-ratelimit/weir/pkg/limiter"

func quota(f *fixture) {
	one, two := f.hourly(limiter.FixedWindow, 1), f.hourly(limiter.FixedWindow, 2)
	hits := []limiter.Hit{
		{Key: "one", Policy: one, N: 1, Mode: limiter.Quota},
		{Key: "two", Policy: two, N: 1, Mode: limiter.Quota, Group: 1},
	}
	f.want("++", hits...)
	f.want("-+", hits...) // admitted: only one of them is over
	f.want("+", limiter.Hit{Key: "one", Policy: one, N: -1})
	f.remaining("one", one, 0) // what did not fit was charged, too: the request passed
	f.remaining("two", two, 0)
	f.want("--", hits...) // denied, and both are fixed windows, which charge denials
	f.want("+", limiter.Hit{Key: "one", Policy: one, N: -1})
	f.want("+", limiter.Hit{Key: "two", Policy: two, N: -1})
	f.remaining("one", one, 0)
	f.remaining("two", two, 0)
}

// quotaOfSeveralLimits: one descriptor is over when one of its limits is.
func quotaOfSeveralLimits(f *fixture) {
	short, long := f.hourly(limiter.Funnel, 1), f.hourly(limiter.Funnel, 9)
	hits := []limiter.Hit{
		{Key: "short", Policy: short, N: 1, Mode: limiter.Quota},
		{Key: "long", Policy: long, N: 1, Mode: limiter.Quota},
		{Key: "other", Policy: short, N: 1, Mode: limiter.Quota, Group: 1},
	}
	f.want("+++", hits...)
	f.want("-+-", hits...) // both descriptors are over: denied, so nothing is charged
	f.remaining("long", long, 8)
	f.want("-++", hits[0], hits[1], limiter.Hit{Key: "fresh", Policy: short, N: 1, Mode: limiter.Quota, Group: 1})
	f.remaining("long", long, 7)
}

// quotaScattered: a group is what has its number, wherever its hits stand.
func quotaScattered(f *fixture) {
	one, nine := f.hourly(limiter.Funnel, 1), f.hourly(limiter.Funnel, 9)
	of := func(key string, p *limiter.Policy, group int) limiter.Hit {
		return limiter.Hit{Key: key, Policy: p, N: 1, Mode: limiter.Quota, Group: group}
	}
	shadow := limiter.Hit{Key: "shadow", Policy: nine, N: 1, Mode: limiter.Shadow, Group: 1}
	f.want("++", of("a", one, 1), of("b", one, 2))
	// Both groups have one that is over: denied, so that nothing is charged.
	f.want("-+-+", of("a", one, 1), of("c", nine, 2), of("b", one, 2), of("d", nine, 1))
	f.want("+-+-", of("d", nine, 1), of("b", one, 2), of("c", nine, 2), of("a", one, 1))
	f.remaining("c", nine, 9)
	f.remaining("d", nine, 9)
	// A shadow between the hits of a group does not part them.
	f.want("-++", of("a", one, 1), shadow, of("d", nine, 1))
	f.remaining("d", nine, 9)
	// The second group has room.
	f.want("+-+", of("c", nine, 2), of("a", one, 1), of("d", nine, 2))
	f.remaining("c", nine, 8)
	f.remaining("d", nine, 8)
}

func quotaBesideEnforce(f *fixture) {
	p := f.hourly(limiter.FixedWindow, 1)
	over := limiter.Hit{Key: "over", Policy: p, N: 1, Mode: limiter.Quota}
	left := limiter.Hit{Key: "left", Policy: p, N: 1, Mode: limiter.Quota, Group: 1}
	f.want("+", over)
	f.want("-+-", over, left, limiter.Hit{Key: "ban", Policy: f.hourly(limiter.FixedWindow, 0), N: 1})
	f.remaining("left", p, 1)
	f.want("+", limiter.Hit{Key: "over", Policy: p, N: -1})
	f.remaining("over", p, 1) // it did not deny, so it was not charged for the denial
	f.want("+", over)
	f.want("-+", over, limiter.Hit{Key: "enforced", Policy: p, N: 1}) // denied by its only quota hit
	f.remaining("enforced", p, 1)
}

// quotaWithRoom: a group below 0 is never over, so that its hits deny nothing, and are used up.
func quotaWithRoom(f *fixture) {
	p := f.hourly(limiter.FixedWindow, 3)
	a := limiter.Hit{Key: "a", Policy: p, N: 2, Mode: limiter.Quota, Group: -1}
	b := limiter.Hit{Key: "b", Policy: p, N: 2, Mode: limiter.Quota, Group: -2}
	f.want("++", a, b)
	f.want("--", a, b) // admitted
	f.remaining("a", p, 0)
	f.want("--+", a, limiter.Hit{Key: "b", Policy: p, N: 1, Mode: limiter.Quota, Group: 1},
		limiter.Hit{Key: "enforced", Policy: p, N: 1})
	f.remaining("enforced", p, 2)
}
