package redistest

import (
	"context"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// Client returns a client for a URL of Server.URL, Server.SocketURL, Sentinel.URL or Cluster.URL, which may have
// user:password@ before the host. timeout bounds each round trip. The client is closed when the test ends.
func Client(tb testing.TB, address string, timeout time.Duration) redis.UniversalClient {
	tb.Helper()
	silence()
	scheme, rest, _ := strings.Cut(address, "://")
	rest, query, _ := strings.Cut(rest, "?")
	o := &redis.UniversalOptions{
		ContextTimeoutEnabled: true, ReadTimeout: timeout, WriteTimeout: timeout, PoolTimeout: timeout,
		DialTimeout: proctest.Patience, DialerRetries: 1, MaxRetries: -1, Protocol: 2, DisableIdentity: true,
	}
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		o.Username, o.Password, _ = strings.Cut(rest[:at], ":")
		rest = rest[at+1:]
	}
	hosts, path, _ := strings.Cut(rest, "/")
	o.Addrs = strings.Split(hosts, ",")
	var c redis.UniversalClient
	switch scheme {
	case "redis+sentinel":
		values, err := url.ParseQuery(query)
		if err != nil {
			tb.Fatal(err)
		}
		o.MasterName, _, _ = strings.Cut(path, "/")
		o.SentinelPassword = values.Get("sentinel_password")
		o.ReadTimeout = max(timeout, 250*time.Millisecond) // for the sentinels
		c = redis.NewFailoverClient(o.Failover())
	case "redis+cluster":
		o.ReadTimeout = max(timeout, 250*time.Millisecond) // for the slots
		cluster := o.Cluster()
		cluster.MinRetryBackoff, cluster.MaxRetryBackoff = -1, -1
		c = redis.NewClusterClient(cluster)
	case "unix":
		simple := o.Simple()
		simple.Network, simple.Addr = "unix", "/"+path
		c = redis.NewClient(simple)
	default:
		c = redis.NewClient(o.Simple())
	}
	tb.Cleanup(func() {
		if err := c.Close(); err != nil {
			tb.Error(err)
		}
	})
	return c
}

// silence turns off the log of go-redis, because calls return the same errors.
var silence = sync.OnceFunc(func() { redis.SetLogger(discard{}) })

type discard struct{}

func (discard) Printf(context.Context, string, ...any) {}
