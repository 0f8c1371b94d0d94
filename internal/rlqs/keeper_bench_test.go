package rlqs

import (
	"fmt"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/pkg/limiter"
)

type deaf struct{}

func (deaf) Send([]Assignment) {}

// BenchmarkTick is one step of a keeper with 1,000 buckets: as many limits that one Envoy reports, or 100 limits that
// each of ten Envoys reports, or as many that each count a second limit, which all share.
func BenchmarkTick(b *testing.B) {
	for _, c := range []struct {
		envoys, buckets int
		isShared        bool
	}{{1, 1000, false}, {10, 100, false}, {1, 1000, true}} {
		b.Run(fmt.Sprintf("%dx%d,shared=%t", c.envoys, c.buckets, c.isShared), func(b *testing.B) {
			store := newLedger(b)
			defer store.Close()
			p := perSecond(b, limiter.Funnel, 1000)
			all := perSecond(b, limiter.Funnel, 1_000_000)
			rules := &fakeRules{resolve: func(_ string, id BucketID) Target {
				hits := []limiter.Hit{{Key: "shop." + string(id), Policy: p}}
				if c.isShared {
					hits = append(hits, limiter.Hit{Key: "shop", Policy: all})
				}
				return Target{Hits: hits}
			}}
			k, err := New(Options{Store: store, Resolver: rules})
			if err != nil {
				b.Fatal(err)
			}
			usages := make([]Usage, c.buckets)
			for i := range usages {
				usages[i] = Usage{ID: BucketID(fmt.Sprint("bucket-", i)), Allowed: 400, Elapsed: 5 * time.Second}
			}
			streams := make([]*Stream, c.envoys)
			for i := range streams {
				streams[i] = k.Open("", "shop", "", deaf{})
				streams[i].Report(usages)
			}
			k.step(b.Context())
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				k.start = k.start.Add(-tick) // time passes
				if i%50 == 0 {
					for _, s := range streams {
						s.Report(usages)
					}
				}
				k.step(b.Context())
			}
		})
	}
}
