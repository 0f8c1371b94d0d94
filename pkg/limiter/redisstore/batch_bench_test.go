package redisstore

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// benchBatcher returns a batcher on a separate Redis, the batcher's client, and a limit that is never reached.
func benchBatcher(b *testing.B) (*batcher, *redis.Client, *limiter.Policy) {
	b.Helper()
	opt, err := redis.ParseURL(redistest.Start(b).SocketURL())
	if err != nil {
		b.Fatal(err)
	}
	client := redis.NewClient(opt)
	b.Cleanup(func() { _ = client.Close() })
	p, err := limiter.NewPolicy(limiter.Params{Algorithm: limiter.Funnel, Limit: 1_000_000_000, Window: time.Minute})
	if err != nil {
		b.Fatal(err)
	}
	return &batcher{client: client, keyspace: keyspace{prefix: "weir:1:"}, now: func() int64 { return 0 }, sent: new(sent)}, client, p
}

// BenchmarkCall measures the CPU time of Redis per hit, for several algorithms and numbers of requests per call.
// cpu-us/hit is the CPU time of the Redis process. redis-us/hit is the script's time in commandstats.
func BenchmarkCall(b *testing.B) {
	r, client, funnel := benchBatcher(b)
	policy := func(p limiter.Params) *limiter.Policy {
		p.Limit, p.Window = 1_000_000_000, time.Minute
		made, err := limiter.NewPolicy(p)
		if err != nil {
			b.Fatal(err)
		}
		return made
	}
	window := policy(limiter.Params{Algorithm: limiter.FixedWindow})
	for _, mix := range []struct {
		name     string
		policies []*limiter.Policy
	}{
		{"funnel", []*limiter.Policy{funnel}},
		{"windows", []*limiter.Policy{window, window, window, window}},
		{"mixed", []*limiter.Policy{
			funnel, policy(limiter.Params{Algorithm: limiter.SlidingWindow, Segments: 8}),
			policy(limiter.Params{Algorithm: limiter.TokenBucket, Burst: 100_000}),
			policy(limiter.Params{Algorithm: limiter.TokenBucket, Burst: 1_000_000}),
		}},
	} {
		for _, requests := range []int{1, 8, 32} {
			b.Run(fmt.Sprintf("%s/requests=%d", mix.name, requests), func(b *testing.B) {
				var calls []*call
				for i := range 1024 {
					c := &call{}
					for j, p := range mix.policies {
						key := fmt.Sprintf("%s|shop|remote_address=10.0.%d.%d", p.Algorithm(), i, j)
						c.hits = append(c.hits, limiter.Hit{Key: key, Policy: p, N: 1})
					}
					calls = append(calls, c)
				}
				client.ConfigResetStat(b.Context())
				before := redisCPU(b, client)
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
				hits := float64(b.N * requests * len(mix.policies))
				b.ReportMetric((redisCPU(b, client)-before)*1e6/hits, "cpu-us/hit")
				_, stat, _ := strings.Cut(client.Info(b.Context(), "commandstats").Val(), "cmdstat_evalsha:")
				var made, usec float64
				if _, err := fmt.Sscanf(stat, "calls=%f,usec=%f", &made, &usec); err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(usec/hits, "redis-us/hit")
			})
		}
	}
}

// redisCPU returns the CPU time that the server has used, in seconds.
func redisCPU(b *testing.B, client *redis.Client) (seconds float64) {
	b.Helper()
	for line := range strings.Lines(client.Info(b.Context(), "cpu").Val()) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_user" || name == "used_cpu_sys" {
			of, err := strconv.ParseFloat(value, 64)
			if err != nil {
				b.Fatal(err)
			}
			seconds += of
		}
	}
	return seconds
}
