package redisstore

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/internal/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// BenchmarkCall tells what Redis's own clock says of a hit (redis-us/hit), by the hits of a request and the requests
// of a call.
func BenchmarkCall(b *testing.B) {
	opt, err := redis.ParseURL(redistest.Start(b).SocketURL())
	if err != nil {
		b.Fatal(err)
	}
	client := redis.NewClient(opt)
	defer func() { _ = client.Close() }()
	p, err := limiter.NewPolicy(limiter.Params{Algorithm: limiter.Funnel, Limit: 1_000_000_000, Window: time.Minute})
	if err != nil {
		b.Fatal(err)
	}
	for _, hits := range []int{1, 4} {
		for _, requests := range []int{1, 4, 16, 64} {
			b.Run(fmt.Sprintf("hits=%d/requests=%d", hits, requests), func(b *testing.B) {
				r := &batcher{client: client, prefix: "weir:1:", wall: wall, sent: new(sent)}
				var calls []*call
				for i := range 1024 {
					c := &call{}
					for j := range hits {
						c.hits = append(c.hits, limiter.Hit{Key: fmt.Sprintf("funnel|shop|remote_address=10.0.%d.%d", i, j), Policy: p, N: 1})
					}
					calls = append(calls, c)
				}
				client.ConfigResetStat(b.Context())
				var t batch
				for i := 0; b.Loop(); i++ {
					t.reset()
					for j := range requests {
						c := calls[(i*requests+j)%len(calls)]
						c.out, c.err = c.out[:0], nil
						t.add(c)
					}
					r.send(b.Context(), &t)
					if err := t.calls[0].err; err != nil {
						b.Fatal(err)
					}
				}
				_, stat, _ := strings.Cut(client.Info(b.Context(), "commandstats").Val(), "cmdstat_evalsha:")
				var made, usec float64
				if _, err := fmt.Sscanf(stat, "calls=%f,usec=%f", &made, &usec); err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(usec/made/float64(requests*hits), "redis-us/hit")
			})
		}
	}
}
