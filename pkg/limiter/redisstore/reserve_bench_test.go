package redisstore

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// BenchmarkReservation compares the CPU time of Redis for two ways to limit a cost that is known at the end: a peek and
// then a charge, and a start with a Reserve and then its end, which in four of five cases takes a part back. Both run
// in turns of 1,000 pairs. It reports the medians. Run it with -benchtime 100000x.
func BenchmarkReservation(b *testing.B) {
	for _, a := range []limiter.Algorithm{
		limiter.FixedWindow, limiter.SlidingWindow, limiter.SlidingLog, limiter.Funnel,
	} {
		for _, size := range []int{1, 8, 64} {
			b.Run(fmt.Sprintf("%s/requests=%d", a, size), func(b *testing.B) { benchReservation(b, a, size) })
		}
	}
}

func benchReservation(b *testing.B, a limiter.Algorithm, size int) {
	b.Helper()
	r, client, _ := benchBatcher(b)
	in := limiter.Params{Algorithm: a, Limit: 1_000_000, Window: time.Minute, ChargeDenied: limiter.ChargeNone}
	if a == limiter.SlidingLog {
		in.MaxLogEntries = in.Limit
	}
	policy := func() *limiter.Policy {
		p, err := limiter.NewPolicy(in)
		if err != nil {
			b.Fatal(err)
		}
		return p
	}
	plain := policy()
	in.Reserve = in.Limit / 2
	reserved := policy()
	in.ChargeDenied = limiter.ChargeFull
	ends := policy()
	n := 0
	peeks := &pairs{batcher: r, size: size, first: func() limiter.Hit {
		n++
		return limiter.Hit{Key: fmt.Sprintf("%s|shop|api_key=%d", a, n%4096), Policy: plain, Peek: true}
	}, second: func(h limiter.Hit, _ *limiter.Decision) limiter.Hit {
		return limiter.Hit{Key: h.Key, Policy: plain, N: 7}
	}}
	starts := &pairs{batcher: r, size: size, first: func() limiter.Hit {
		n++
		return limiter.Hit{Key: fmt.Sprintf("%s|shop|api_key={%d}", a, n%4096), Policy: reserved, N: 10}
	}, second: func(h limiter.Hit, d *limiter.Decision) limiter.Hit {
		if n++; n%5 == 0 {
			return limiter.Hit{Key: h.Key, Policy: ends, N: 2, Mode: limiter.Shadow}
		}
		return limiter.Hit{Key: h.Key, Policy: reserved, N: -4, TakenAt: d.TakenAt, Mode: limiter.Shadow}
	}}
	var costs [2][]float64
	for done := -1000; done < b.N; done += 1000 { // the first turn loads the script
		for i, kind := range []*pairs{peeks, starts} {
			took := kind.turn(b, client)
			if done >= 0 {
				costs[i] = append(costs[i], took)
			}
		}
	}
	slices.Sort(costs[0])
	slices.Sort(costs[1])
	peek, start := costs[0][len(costs[0])/2], costs[1][len(costs[1])/2]
	b.ReportMetric(peek, "peek-us/pair")
	b.ReportMetric(start, "start-us/pair")
	b.ReportMetric(start/peek, "ratio")
	b.ReportMetric(0, "ns/op")
}

// pairs decides pairs of requests. A script call has size requests, half of them the first of a pair.
type pairs struct {
	*batcher
	size   int
	first  func() limiter.Hit
	second func(limiter.Hit, *limiter.Decision) limiter.Hit
}

// turn decides 1,000 pairs, and returns the CPU time of the server per pair, in microseconds.
func (p *pairs) turn(b *testing.B, client *redis.Client) float64 {
	b.Helper()
	before, half := redisCPU(b, client), max(1, p.size/2)
	var was []*call
	seconds := func() (all []*call) {
		for _, c := range was {
			all = append(all, callOf(p.second(c.hits[0], &c.out[0])))
		}
		return all
	}
	for done := 0; done < 1000; done += half {
		var firsts []*call
		for range half {
			firsts = append(firsts, callOf(p.first()))
		}
		if p.size == 1 {
			p.decide(b, firsts)
			was = firsts
			p.decide(b, seconds())
			continue
		}
		p.decide(b, append(seconds(), firsts...))
		was = firsts
	}
	if p.size > 1 {
		p.decide(b, seconds())
	}
	return (redisCPU(b, client) - before) * 1e6 / 1000
}

func callOf(h limiter.Hit) *call { return &call{hits: []limiter.Hit{h}} }

func (p *pairs) decide(b *testing.B, calls []*call) {
	b.Helper()
	var all batch
	for _, c := range calls {
		all.add(c)
	}
	p.send(b.Context(), &all)
	for _, c := range calls {
		if c.err != nil || !c.out[0].Allowed && c.hits[0].Mode != limiter.Shadow {
			b.Fatalf("%+v, %v", c.out, c.err)
		}
	}
}
